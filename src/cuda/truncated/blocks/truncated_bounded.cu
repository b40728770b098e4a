/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   draws truncated rows in which few tokens can matter, after a product that stored only
 *        logits above a row's bound (truncated_blocks.cuh): reads the tokens that reach the bound,
 *        without ranking blocks. Fallback rows go to clusters (truncated_cluster.cu).
 * COST   reads the stored logits that reach the bound. CTAs wait 4 to 18 thousand cycles for the
 *        last tiles of the product, so all independent work comes first.
 * MAP    a CTA a row, which tries every row.
 * SMEM, SYNC, NUMERICS  those of truncated_blocks.cu.
 */
#include "cuda/truncated/blocks/truncated_blocks.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, CUDA_TRUNCATED_CTAS)
    gumbel_truncated_bounded(const __grid_constant__ cuda_truncated_params p)
{
    const int64_t b = blockIdx.x;
    const cuda_truncated_params &call = load_call(p);
    __syncthreads();
    const bool refused = describe_row(call, b);
    if (threadIdx.x == 96)
        start_row();
    if (threadIdx.x == kThreads - 1) {
        publish_row_state(p, b, CUDA_ROW_PENDING);
        __threadfence(); /* clusters that start early must not read the state of an earlier call */
    }
    ptx_wait_for_launch();
    if (threadIdx.x == kThreads - 1)
        ptx_allow_launch();
    if (b == 0 && threadIdx.x == 0)
        p.row_thresholds[1] = 0;
    if (!serve_by_bound(b, refused))
        publish_fallback_row(call, b);
}
