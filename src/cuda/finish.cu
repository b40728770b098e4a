/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   merges the summaries of all parts of a row and writes the outputs, or the merged
 * summaries.
 * COST   48 bytes a part, row and sample, from the second-level cache.
 * MAP    a CTA of 128 threads a row and sample; threads merge every 128th part, then a tree.
 */
#include "cuda/merge.cuh"

namespace
{

constexpr int kThreads = 128;

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_finish_rows(const __grid_constant__ cuda_params p)
{
    __shared__ gumbel_summary merged[kThreads];
    int samples = p.problem.sampling.num_samples;
    int64_t at = blockIdx.x, count = p.problem.batch * samples;
    gumbel_summary own;
    gumbel_summary_empty(&own);
    ptx_wait_for_launch();
    for (int part = threadIdx.x; part < p.parts; part += kThreads)
        gumbel_summary_merge(&own, &p.summaries[part * count + at]);
    merged[threadIdx.x] = own;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            gumbel_summary_merge(&merged[threadIdx.x], &merged[threadIdx.x + half]);
    }
    if (threadIdx.x != 0)
        return;
    if (p.shared_floors)
        p.shared_floors[CUDA_FLOOR_WORDS * at] = 0;
    write_draw(p, merged[0], at);
}
