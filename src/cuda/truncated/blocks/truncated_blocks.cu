/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   draws truncated rows in which few tokens can matter. The kernel finds the largest logit of
 *        each block of 128 tokens, unless the product has stored these block maxima, and the last
 *        CTA of a row tries to serve it from the blocks that may matter (truncated_blocks.cuh).
 *        Fallback rows go to clusters (truncated_cluster.cu). After a product that stored only
 *        logits above a row's bound, a separate kernel reads the tokens that reach the bound,
 *        without ranking blocks.
 * COST   reads B V elements once and writes 1 / 128 of that; then a row takes about 8 us of one
 *        CTA, less if its multiprocessor has run this code before.
 * MAP    p.splits CTAs a row. A warp takes kWarpBlocks blocks at once, four neighbouring tokens a
 *        lane.
 * SMEM   33 KB of state (truncated_shared.cuh), the state of blocks (block_tops.cuh), and
 *        five bytes a block.
 * SYNC   no CTA waits for another: the last CTA of a row to increment a counter in global memory
 *        reads the results of all. The next launch starts once every CTA has allowed it or ended;
 *        by then each row's state word is written, and the clusters of that launch poll these
 *        words.
 * NUMERICS  those of the naive kernel, bit for bit: tokens that are not read contribute to no
 *        output.
 */
#include "cuda/truncated/blocks/block_kernel.cuh"

/* After a product that stored only logits above bounds: a CTA a row, which tries every row. CTAs
 * wait 4 to 18 thousand cycles for the last tiles, so all independent work comes first. */
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

extern "C" __global__ void __launch_bounds__(kThreads, CUDA_TRUNCATED_CTAS)
    gumbel_truncated_blocks(const __grid_constant__ cuda_truncated_params p)
{
    serve_split(p, truncation_rows());
}
