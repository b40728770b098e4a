/* SPDX-License-Identifier: Apache-2.0
 *
 * A CTA's split of a row that is drawn before it is truncated (heads: truncated_pivots.cu,
 * program_pivots.cu): its logits in shared memory, and draws from those that a filter accepts. A
 * filter is a predicate of a token's value (pivot_filters.cuh).
 */
#ifndef GUMBEL_CUDA_SPLIT_DRAW_CUH
#define GUMBEL_CUDA_SPLIT_DRAW_CUH

#include "cuda/common/turn_blocks.cuh"
#include "cuda/truncated/row/load_logits.cuh"
#include "cuda/truncated/row/row_draw.cuh"

namespace
{

constexpr int kGroupThreads = CUDA_PIVOT_THREADS, kGroupWarps = kGroupThreads / 32;
/* Tokens of a split, and quads per thread. */
constexpr int kSplitTokens = CUDA_PIVOT_SPLIT, kThreadQuads = kSplitTokens / (4 * kGroupThreads);
static_assert(kThreadQuads * 4 * kGroupThreads == kSplitTokens, "whole quads a thread");

/* Parameters of a row's draw. */
struct split_row {
    float unit;          /* y of a logit */
    logit_values values; /* of y */
    gumbel_stream stream;

    __device__ __forceinline__ float value(float logit) const
    {
        return logit * unit * values.scale();
    }
    __device__ __forceinline__ float to_z(float logit) const
    {
        return logit * unit * values.inverse_temperature;
    }
};

/* Shared memory of a CTA. */
struct split_shared {
    float logits[kSplitTokens];             /* -inf for invalid tokens; q.scale > 0 */
    uint64_t warps[kGroupWarps][4], row[4]; /* joined results */
    uint32_t threshold;    /* score that a token of the split reaches, as ordered bits */
    uint32_t is_abandoned; /* another CTA of the row timed out */
    int32_t token;         /* the winner among all tokens */
};

__device__ __forceinline__ split_shared &split_memory()
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    return *(split_shared *)shared_memory;
}

__device__ __forceinline__ float value_of_token(const gumbel_problem &q, const split_row &row,
                                                int64_t b, int32_t token)
{
    return row.value(
        widen_element(q.logits.data, q.logits.dtype, b * q.logits.stride + token - q.first_token));
}

/* Offset in the split of the i-th quad of this thread. */
__device__ __forceinline__ int place_of_quad(int i)
{
    return 4 * (i * kGroupThreads + (int)threadIdx.x);
}

__device__ __forceinline__ float4 &own_quad(int i)
{
    return *(float4 *)&split_memory().logits[place_of_quad(i)];
}

/* Calls f(value) for each token of this thread. */
template <class F> __device__ __forceinline__ void each_own_value(const split_row &row, F f)
{
#pragma unroll 2
    for (int i = 0; i < kThreadQuads; i++) {
        const float4 raw = own_quad(i);
        const float l[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int k = 0; k < 4; k++)
            f(row.value(l[k]));
    }
}

/* Starts copying this thread's quads of row b, whose split begins at token `begin`; they are valid
 * after ptx_copy_async_wait<0>(). */
__device__ __forceinline__ void load_split(const gumbel_problem &q, int64_t b, int64_t begin)
{
    const float *row = (const float *)get_row_origin(q, b);
    const bool whole = begin >= q.first_token && begin + kSplitTokens <= q.end_token;
    if (whole && q.logits.dtype == GUMBEL_FLOAT32 && (uintptr_t)(row + begin) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < kThreadQuads; i++)
            ptx_copy_async<16>(&own_quad(i), row + begin + place_of_quad(i));
    } else {
#pragma unroll 2
        for (int i = 0; i < kThreadQuads; i++) {
            const four l = load_four_logits(q, b, begin + place_of_quad(i), q.end_token);
            own_quad(i) = make_float4(l.v[0], l.v[1], l.v[2], l.v[3]);
        }
    }
    ptx_copy_async_commit();
}

/* ---------------------------------------------------------------------------------- draws ---- */

/* The best score above a pivot is lower than ln(mass above it) by more than this in one of 200,000
 * draws, with probability exp(-exp(2.5)). On average 12 tokens of a row may reach that score; these
 * are scored first. */
constexpr float kUnlikelyGap = 2.5f;

struct split_winner {
    draw_winner best;

    static __device__ __forceinline__ split_winner empty() { return {draw_winner_none()}; }
    __device__ __forceinline__ void join(const split_winner &other)
    {
        draw_winner_offer(best, other.best.score, other.best.z, other.best.id);
    }
    __device__ __forceinline__ void join_warp() { best = draw_winner_of_warp(best); }
};

/* z of a logit; -inf if the filter does not accept its value. */
template <class Filter>
__device__ __forceinline__ float filter_logit(const split_row &row, const Filter &filter,
                                              float logit)
{
    return filter.accepts_value(row.value(logit)) ? row.to_z(logit) : -INFINITY;
}

template <class Filter>
__device__ __forceinline__ four filter_quad(const split_row &row, const Filter &filter,
                                            float4 logits)
{
    const float l[4] = {logits.x, logits.y, logits.z, logits.w};
    four z;
#pragma unroll
    for (int i = 0; i < 4; i++)
        z.v[i] = filter_logit(row, filter, l[i]);
    return z;
}

/* A score that the split reaches, from the J of its blocks that the filter accepts. */
template <class Filter>
__device__ __forceinline__ float find_split_threshold(const split_row &row, const Filter &filter,
                                                      const turn_blocks &blocks, int64_t begin)
{
    static_assert(kThreadQuads <= kTurns, "one turn covers all blocks");
    const int64_t at = blocks.most_likely() - begin;
    const float logit = at < kSplitTokens ? split_memory().logits[at] : -INFINITY;
    const float reached = draw_score_bound_of_warp(
        draw_score_bound_of_word(false, filter_logit(row, filter, logit), blocks.block.r));
    if (threadIdx.x == 0)
        split_memory().threshold = ordered_bits(-INFINITY);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        atomicMax(&split_memory().threshold, ordered_bits(reached));
    __syncthreads();
    return ordered_float(split_memory().threshold);
}

/* Draws from the split's tokens that the filter accepts, with the call's noise: the best token that
 * reaches least_score; NaN: the best of all. */
template <class Filter>
__device__ __noinline__ split_winner draw_from_split(split_row row, Filter filter, int64_t begin,
                                                     float least_score)
{
    const draw_philox philox = draw_philox_of(row.stream);
    const uint32_t own = (uint32_t)(begin + place_of_quad(0));
    const turn_blocks blocks =
        turn_blocks::from_philox(philox, own - 4 * (threadIdx.x % 32), 4 * kGroupThreads);
    const float threshold = isnan(least_score) ? find_split_threshold(row, filter, blocks, begin)
                                               : draw_threshold(least_score);
    draw_winner best = draw_winner_none();
#pragma unroll 2
    for (int k = 0; k < kThreadQuads; k++) {
        const uint32_t token = own + 4 * k * kGroupThreads;
        const four z = filter_quad(row, filter, own_quad(k));
        const float top = largest_of(z), reach = blocks.reach_of(k);
        if (!__any_sync(~0u,
                        top > -INFINITY && draw_passes_bound(top, draw_bound(threshold, reach))))
            continue;
#pragma unroll 1
        for (uint32_t may = find_winners(philox, token, z.v, reach, threshold); may;
             may &= may - 1) {
            const int i = __ffs(may) - 1;
            const float one = draw_select_of_four(z.v, i);
            draw_winner_offer(best, one + draw_token_noise_noinline(row.stream, token + i), one,
                              (int)token + i);
        }
    }
    return {best};
}

} // namespace

#endif
