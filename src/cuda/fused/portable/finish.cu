/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   merges the summaries of all CTAs of a row, and writes the outputs or the merged summaries.
 * COST   48 bytes a CTA, row and sample, from L2: one round trip, and the start and end of a
 *        launch, some 3 us in all.
 * MAP    one warp, which is a CTA, for each row and sample.
 */
#include "cuda/common/merge.cuh"

extern "C" __global__ void __launch_bounds__(CUDA_FINISH_THREADS)
    gumbel_finish_rows(const __grid_constant__ cuda_params p)
{
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (p.row_thresholds && threadIdx.x == 0)
        p.row_thresholds[CUDA_THRESHOLD_WORDS * (int64_t)blockIdx.x] = 0;
    finish_draw(p, blockIdx.x, p.problem.with_mass != 0);
}

/* The summary of the lane whose index differs from this lane's in `bit`. */
static __device__ __forceinline__ gumbel_summary other_summary(const gumbel_summary &own, int bit)
{
    constexpr int words = sizeof own / sizeof(uint32_t);
    uint32_t raw[words];
    gumbel_summary other;
    memcpy(raw, &own, sizeof own);
#pragma unroll
    for (int i = 0; i < words; i++)
        raw[i] = __shfl_xor_sync(~0u, raw[i], bit);
    memcpy(&other, raw, sizeof other);
    return other;
}

/* Merges the summaries of draw `at` from all CTAs; by a warp; every lane gets the result. */
static __device__ gumbel_summary merge_any(const cuda_params &p, int64_t at)
{
    gumbel_summary own;
    gumbel_summary_empty(&own);
    for (int32_t i = threadIdx.x; i < p.splits; i += 32)
        gumbel_summary_merge_any(&own, &p.summaries[i * (int64_t)gridDim.x + at]);
    for (int bit = 16; bit > 0; bit /= 2) {
        gumbel_summary other = other_summary(own, bit);
        gumbel_summary_merge_any(&own, &other);
    }
    return own;
}

/* Summaries of any origin: merged into others, or finished. The first draw of a row determines the
 * row's status and log-normaliser. */
extern "C" __global__ void __launch_bounds__(CUDA_FINISH_THREADS)
    gumbel_finish_any(const __grid_constant__ cuda_params p)
{
    const int64_t at = blockIdx.x, samples = p.problem.sampling.num_samples;
    ptx_allow_launch();
    ptx_wait_for_launch();
    gumbel_summary own = merge_any(p, at);
    if (p.partials) {
        if (threadIdx.x == 0)
            gumbel_summary_merge_any(&p.partials[at], &own);
        return;
    }
    gumbel_summary first = at % samples ? merge_any(p, at - at % samples) : own;
    if (threadIdx.x == 0)
        write_merged(p.output, at, samples, own, first);
}
