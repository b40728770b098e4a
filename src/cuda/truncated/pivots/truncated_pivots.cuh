/* SPDX-License-Identifier: Apache-2.0
 *
 * A CTA's split of a row that is drawn before it is truncated (head: truncated_pivots.cu): its
 * logits in shared memory, sums of the masses above the pivot in floats or integers, and draws.
 */
#ifndef GUMBEL_CUDA_TRUNCATED_PIVOTS_CUH
#define GUMBEL_CUDA_TRUNCATED_PIVOTS_CUH

#include "cuda/common/turn_blocks.cuh"
#include "cuda/truncated/row/pivot.cuh"
#include "cuda/truncated/row/row_draw.cuh"
#include "cuda/truncated/row/load_logits.cuh"

namespace
{

constexpr int kGroupThreads = CUDA_PIVOT_THREADS, kGroupWarps = kGroupThreads / 32;
/* Tokens of a split, and quads per thread. */
constexpr int kSplitTokens = CUDA_PIVOT_SPLIT, kThreadQuads = kSplitTokens / (4 * kGroupThreads);
static_assert(kThreadQuads * 4 * kGroupThreads == kSplitTokens, "whole quads a thread");

/* Parameters and progress of a row. */
struct pivot_row {
    float unit;          /* y of a logit */
    logit_values values; /* of y */
    gumbel_rules rules;
    gumbel_stream stream;
    float pivot, largest; /* values; `largest` is set before exact sums */

    __device__ __forceinline__ float value(float logit) const
    {
        return logit * unit * values.scale();
    }
};

/* Shared memory of a CTA. */
struct pivot_shared {
    float logits[kSplitTokens];             /* -inf for invalid tokens; q.scale > 0 */
    uint64_t warps[kGroupWarps][4], row[4]; /* joined results */
    uint32_t threshold;    /* score that a token of the split reaches, as ordered bits */
    uint32_t is_abandoned; /* another CTA of the row timed out */
    int32_t token;         /* the winner among all tokens */
};
static_assert(sizeof(pivot_shared) <= CUDA_PIVOT_BYTES, "the launcher reserves that much");

__device__ __forceinline__ pivot_shared &pivot_state()
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    return *(pivot_shared *)shared_memory;
}

/* Parameters of a row. */
__device__ __forceinline__ pivot_row load_pivot_row(const gumbel_problem &q, int64_t b)
{
    const gumbel_row draw = gumbel_problem_row(&q, b);
    pivot_row row;
    row.rules = gumbel_problem_rules(&q, b, draw.greedy);
    row.unit = q.scale;
    row.values = {draw.inverse_temperature, row.rules.before != 0};
    row.stream = draw.stream;
    return row;
}

__device__ __forceinline__ float value_of_token(const gumbel_problem &q, const pivot_row &row,
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
    return *(float4 *)&pivot_state().logits[place_of_quad(i)];
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

/* ---------------------------------------------------------------------------------- sums ---- */

/* Masses relative to the pivot's, and the largest value. */
struct split_float_sums {
    float above, all, largest;

    static __device__ __forceinline__ split_float_sums empty() { return {0.0f, 0.0f, -INFINITY}; }
    __device__ __forceinline__ void join(const split_float_sums &other)
    {
        above += other.above;
        all += other.all;
        largest = fmaxf(largest, other.largest);
    }
    __device__ __forceinline__ void join_warp()
    {
#pragma unroll
        for (int half = 16; half > 0; half /= 2)
            join({__shfl_xor_sync(~0u, above, half), __shfl_xor_sync(~0u, all, half),
                  __shfl_xor_sync(~0u, largest, half)});
    }
};

__device__ __forceinline__ split_float_sums sum_split(const pivot_row &row)
{
    split_float_sums own = split_float_sums::empty();
#pragma unroll 2
    for (int i = 0; i < kThreadQuads; i++) {
        const float4 raw = own_quad(i);
        const float l[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float v = row.value(l[k]), mass = pivot_sums::mass_of(v, row.pivot);
            own.join({v > row.pivot ? mass : 0.0f, mass, v});
        }
    }
    return own;
}

/* Exact sums of masses, as the rules compare them. */
struct split_exact_sums {
    wide_sum above, all;

    static __device__ __forceinline__ split_exact_sums empty() { return {{0, 0}, {0, 0}}; }
    __device__ __forceinline__ void join(const split_exact_sums &other)
    {
        above = above + other.above;
        all = all + other.all;
    }
    __device__ __forceinline__ void join_warp()
    {
        above = sum_of_warp(above);
        all = sum_of_warp(all);
    }
};

__device__ __noinline__ split_exact_sums sum_split_exactly(pivot_row row)
{
    split_exact_sums own = split_exact_sums::empty();
#pragma unroll 1
    for (int i = 0; i < 4 * kThreadQuads; i++) {
        const float v = row.value(pivot_state().logits[place_of_quad(i / 4) + i % 4]);
        const uint64_t mass = gumbel_token_mass(gumbel_exp(v - row.largest));
        own.all.add(mass);
        own.above.add(v > row.pivot ? mass : 0);
    }
    return own;
}

/* --------------------------------------------------------------------------------- draws ---- */

struct split_winner {
    draw_winner best;

    static __device__ __forceinline__ split_winner empty() { return {draw_winner_none()}; }
    __device__ __forceinline__ void join(const split_winner &other)
    {
        draw_winner_offer(best, other.best.score, other.best.z, other.best.id);
    }
    __device__ __forceinline__ void join_warp() { best = draw_winner_of_warp(best); }
};

/* z of a quad; -inf for tokens that are not above the pivot. */
__device__ __forceinline__ four above_pivot(const pivot_row &row, float4 logits)
{
    const float l[4] = {logits.x, logits.y, logits.z, logits.w};
    four z;
#pragma unroll
    for (int i = 0; i < 4; i++)
        z.v[i] = row.value(l[i]) > row.pivot ? l[i] * row.unit * row.values.inverse_temperature
                                             : -INFINITY;
    return z;
}

/* A score that the split reaches, from the J of its blocks that lie above the pivot. */
__device__ __forceinline__ float find_split_threshold(const pivot_row &row,
                                                      const turn_blocks &blocks, int64_t begin)
{
    static_assert(kThreadQuads <= kTurns, "one turn covers all blocks");
    const int64_t at = blocks.most_likely() - begin;
    const float logit = at < kSplitTokens ? pivot_state().logits[at] : -INFINITY;
    const float z = row.value(logit) > row.pivot ? logit * row.unit * row.values.inverse_temperature
                                                 : -INFINITY;
    const float reached =
        draw_score_bound_of_warp(draw_score_bound_of_word(false, z, blocks.block.r));
    if (threadIdx.x == 0)
        pivot_state().threshold = ordered_bits(-INFINITY);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        atomicMax(&pivot_state().threshold, ordered_bits(reached));
    __syncthreads();
    return ordered_float(pivot_state().threshold);
}

/* Draws from the split's tokens above the pivot, with the call's noise: the best token that reaches
 * least_score; NaN: the best of all. */
__device__ __noinline__ split_winner draw_from_split(pivot_row row, int64_t begin,
                                                     float least_score)
{
    const draw_philox philox = draw_philox_of(row.stream);
    const uint32_t own = (uint32_t)(begin + place_of_quad(0));
    const turn_blocks blocks =
        turn_blocks::from_philox(philox, own - 4 * (threadIdx.x % 32), 4 * kGroupThreads);
    const float threshold =
        isnan(least_score) ? find_split_threshold(row, blocks, begin) : draw_threshold(least_score);
    draw_winner best = draw_winner_none();
#pragma unroll 2
    for (int k = 0; k < kThreadQuads; k++) {
        const uint32_t token = own + 4 * k * kGroupThreads;
        const four z = above_pivot(row, own_quad(k));
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
