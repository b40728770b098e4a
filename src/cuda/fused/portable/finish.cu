/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   merges the summaries of all CTAs of a row, and writes the outputs or the merged summaries.
 * COST   48 bytes a CTA, row and sample, from L2: one round trip, and the start and end of a
 *        launch, some 3 us in all.
 * MAP    one warp, which is a CTA, for each row and sample.
 */
#include "cuda/common/cuda_statistics_params.h"
#include "cuda/common/merge.cuh"
#include "cuda/common/top_tokens.cuh"

extern "C" __global__ void __launch_bounds__(CUDA_FINISH_THREADS)
    gumbel_finish_rows(const __grid_constant__ cuda_params p)
{
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (p.row_thresholds && threadIdx.x == 0)
        p.row_thresholds[CUDA_THRESHOLD_WORDS * (int64_t)blockIdx.x] = 0;
    finish_draw(p, blockIdx.x, p.problem.with_mass != 0);
}

/* Adds statistics of other tokens: sums become relative to the larger reference. */
static __device__ __forceinline__ void add_statistics(cuda_row_statistics *own,
                                                      const cuda_row_statistics &other)
{
    const float reference = fmaxf(own->reference, other.reference);
    if (reference > -INFINITY) {
        const double own_below = (double)own->reference - reference;
        const double other_below = (double)other.reference - reference;
        const double own_factor = exp(own_below), other_factor = exp(other_below);
        double sum = 0.0, weighted = 0.0;
        if (own->sum > 0.0) {
            sum += own->sum * own_factor;
            weighted += (own->weighted + own->sum * own_below) * own_factor;
        }
        if (other.sum > 0.0) {
            sum += other.sum * other_factor;
            weighted += (other.weighted + other.sum * other_below) * other_factor;
        }
        *own = {sum,
                weighted,
                reference,
                {own->top_z[0], own->top_z[1]},
                {own->top_id[0], own->top_id[1]},
                {}};
    }
    for (int i = 0; i < CUDA_STATISTICS_TOP_MAX; i++)
        insert_top(own->top_z, own->top_id, other.top_z[i], other.top_id[i]);
}

/* The statistics of the lane whose index differs from this lane's in `bit`. */
static __device__ __forceinline__ cuda_row_statistics
other_statistics(const cuda_row_statistics &own, int bit)
{
    cuda_row_statistics other = {};
    other.sum = __shfl_xor_sync(~0u, own.sum, bit);
    other.weighted = __shfl_xor_sync(~0u, own.weighted, bit);
    other.reference = __shfl_xor_sync(~0u, own.reference, bit);
    for (int i = 0; i < CUDA_STATISTICS_TOP_MAX; i++) {
        other.top_z[i] = __shfl_xor_sync(~0u, own.top_z[i], bit);
        other.top_id[i] = __shfl_xor_sync(~0u, own.top_id[i], bit);
    }
    return other;
}

/* Merges the statistics of row b from all CTAs, by a warp: each lane those of every 32nd CTA, then
 * all lanes, in an order that does not depend on the batch. Every lane gets the result. */
static __device__ __forceinline__ cuda_row_statistics
merge_statistics(const cuda_statistics_params &p, int64_t b)
{
    constexpr int ahead = 5, words = sizeof(cuda_row_statistics) / sizeof(uint4);
    static_assert(sizeof(cuda_row_statistics) % sizeof(uint4) == 0, "loaded 16 bytes a time");
    const float none = -INFINITY;
    cuda_row_statistics own = {0.0, 0.0, none, {none, none}, {-1, -1}, {}};
    for (int32_t base = threadIdx.x; base < p.call.splits; base += 32 * ahead) {
        uint4 raw[ahead][words]; /* loads in flight, to hide their latency */
#pragma unroll
        for (int i = 0; i < ahead; i++)
#pragma unroll
            for (int k = 0; k < words; k++) {
                const int64_t split = min(base + 32 * i, p.call.splits - 1);
                raw[i][k] =
                    __ldcg((const uint4 *)&p.statistics[split * p.call.problem.batch + b] + k);
            }
#pragma unroll
        for (int i = 0; i < ahead; i++)
            if (base + 32 * i < p.call.splits) {
                cuda_row_statistics other;
                memcpy(&other, raw[i], sizeof other);
                add_statistics(&own, other);
            }
    }
    for (int bit = 16; bit > 0; bit /= 2)
        add_statistics(&own, other_statistics(own, bit));
    return own;
}

/* Writes the entropy and the likeliest tokens of row b, by one thread. */
static __device__ __forceinline__ void write_statistics(const gumbel_output &out, int64_t b,
                                                        const cuda_row_statistics &row, bool ok,
                                                        float lse)
{
    if (out.entropy)
        out.entropy[b] = ok ? fmaxf((float)(log(row.sum) - row.weighted / row.sum), 0.0f) : NAN;
    for (int i = 0; i < out.num_top; i++) {
        const int id = ok ? row.top_id[i] : -1;
        if (out.top_ids)
            out.top_ids[b * out.num_top + i] = id;
        if (out.top_logprobs)
            out.top_logprobs[b * out.num_top + i] = !ok      ? NAN
                                                    : id < 0 ? -INFINITY
                                                             : gumbel_logprob(row.top_z[i], lse);
    }
}

/* As gumbel_finish_rows, with the statistics of rows. */
extern "C" __global__ void __launch_bounds__(CUDA_FINISH_THREADS)
    gumbel_finish_statistics(const __grid_constant__ cuda_statistics_params p)
{
    const int64_t b = blockIdx.x;
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (threadIdx.x < CUDA_THRESHOLD_WORDS)
        p.call.row_thresholds[CUDA_THRESHOLD_WORDS * b + threadIdx.x] = 0;
    gumbel_summary whole =
        merge_summaries(&p.call.summaries[b], p.call.splits, p.call.problem.batch, true);
    const cuda_row_statistics row = merge_statistics(p, b);
    if (threadIdx.x != 0)
        return;
    write_draw(p.call, whole, b);
    whole.flags |= gumbel_problem_row_flags(&p.call.problem, b);
    const bool ok = gumbel_summary_status(&whole) == GUMBEL_ROW_OK;
    write_statistics(p.call.output, b, row, ok, ok ? gumbel_summary_lse(&whole) : NAN);
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
