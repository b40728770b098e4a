/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   truncated_cluster.cu for GPUs without clusters: transforms, truncates and draws rows of
 *        logits, with every option and output, in one launch. A row lies in the shared memory of 16
 *        CTAs.
 * COST   reads B V elements once: 38 KB a CTA at V = 151936, with two CTAs a multiprocessor, or one
 *        if it has 100 KB. Methods and passes are those of truncated_cluster.cu; an exchange takes
 *        a round trip to the second-level cache, and bins are published there.
 * MAP    16 adjacent CTAs a row, a slice each. The launch has at most as many groups as run at the
 *        same time; each loops over rows.
 * SMEM   the slice's y, and 33 KB of state (truncated_shared.cuh).
 * SYNC   a cooperative launch, whose CTAs run at the same time: CTAs of a group wait for each other
 *        (grid_exchange.cuh). Groups do not wait for each other.
 * NUMERICS  those of the naive kernel, bit for bit: truncation and masses sum integers.
 */
#define CUDA_ROWS_BY_GRID
#include "cuda/truncated/cluster/cluster_row.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    gumbel_truncated_grid(const __grid_constant__ cuda_truncated_params p)
{
    const cuda_truncated_params &call = load_call(p);
    if (threadIdx.x == 0)
        begin_steps();
    serve_rows(p, [&](int64_t b) { serve_by_cluster(call, b); });
}
