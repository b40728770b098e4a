/* SPDX-License-Identifier: Apache-2.0
 *
 * What a CTA does with its part of a row that is drawn before it is cut (head: request_pivots.cu):
 * it holds the logits, weighs what lies above the pivot, in floats or exactly, or draws from it.
 */
#ifndef GUMBEL_CUDA_REQUEST_PIVOTS_CUH
#define GUMBEL_CUDA_REQUEST_PIVOTS_CUH

#include "cuda/common/turn_blocks.cuh"
#include "cuda/request/row/pivot.cuh"
#include "cuda/request/row/request_draw.cuh"
#include "cuda/request/row/request_load.cuh"

namespace
{

constexpr int kGroupThreads = CUDA_REQUEST_PIVOT_THREADS, kGroupWarps = kGroupThreads / 32;
/* Tokens of a part, and quads of them that a thread takes. */
constexpr int kHeld = CUDA_REQUEST_PIVOT_SLICE, kTaken = kHeld / (4 * kGroupThreads);
static_assert(kTaken * 4 * kGroupThreads == kHeld, "whole quads a thread");

/* What is known of a row. */
struct pivot_row {
    float unit;            /* y of a logit */
    request_values values; /* of y */
    gumbel_rules rules;
    gumbel_stream stream;
    float pivot, largest; /* values; the largest one is known before it is weighed exactly */

    __device__ __forceinline__ float value(float logit) const
    {
        return logit * unit * values.scale();
    }
};

/* The shared memory of a CTA. */
struct pivot_shared {
    float logits[kHeld];                    /* -inf for tokens that do not count; q.scale > 0 */
    uint64_t warps[kGroupWarps][4], row[4]; /* what each has found */
    uint32_t sure;     /* score that a token of the part is sure to reach, as ordered bits */
    uint32_t given_up; /* whether the row is, since a CTA waited in vain for another one */
    int32_t token;     /* the winner among all of the row's */
};
static_assert(sizeof(pivot_shared) <= CUDA_REQUEST_PIVOT_BYTES, "the launcher reserves that much");

__device__ __forceinline__ pivot_shared &shared()
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    return *(pivot_shared *)shared_memory;
}

/* What is known of a row before it is weighed. */
__device__ __forceinline__ pivot_row know_row(const gumbel_problem &q, int64_t b)
{
    const gumbel_row draw = gumbel_problem_row(&q, b);
    pivot_row row;
    row.rules = gumbel_problem_rules(&q, b, draw.greedy);
    row.unit = q.scale;
    row.values = {draw.inverse_temperature, row.rules.before != 0};
    row.stream = draw.stream;
    return row;
}

/* The value of a token of row b. */
__device__ __forceinline__ float value_of_token(const gumbel_problem &q, const pivot_row &row,
                                                int64_t b, int32_t token)
{
    return row.value(
        widen_element(q.logits.data, q.logits.dtype, b * q.logits.stride + token - q.first_token));
}

/* Where the i-th of this thread's quads lies in its part. */
__device__ __forceinline__ int place_of_quad(int i)
{
    return 4 * (i * kGroupThreads + (int)threadIdx.x);
}

__device__ __forceinline__ float4 &held_quad(int i)
{
    return *(float4 *)&shared().logits[place_of_quad(i)];
}

/* Start to bring this thread's quads of row b, whose part begins at a token; they are there after a
 * ptx_copy_async_wait<0>(). */
__device__ __forceinline__ void hold_part(const gumbel_problem &q, int64_t b, int64_t begin)
{
    const float *row = (const float *)request_origin(q, b);
    const bool whole = begin >= q.first_token && begin + kHeld <= q.end_token;
    if (whole && q.logits.dtype == GUMBEL_FLOAT32 && (uintptr_t)(row + begin) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < kTaken; i++)
            ptx_copy_async<16>(&held_quad(i), row + begin + place_of_quad(i));
    } else {
#pragma unroll 2
        for (int i = 0; i < kTaken; i++) {
            const four l = request_load_four(q, b, begin + place_of_quad(i), q.end_token);
            held_quad(i) = make_float4(l.v[0], l.v[1], l.v[2], l.v[3]);
        }
    }
    ptx_copy_async_commit();
}

/* ------------------------------------------------------------------------------- weighing ---- */

/* Masses relative to the pivot's, and the largest value. */
struct part_weighed {
    float above, all, largest;

    static __device__ __forceinline__ part_weighed none() { return {0.0f, 0.0f, -INFINITY}; }
    __device__ __forceinline__ void join(const part_weighed &other)
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

__device__ __forceinline__ part_weighed weigh_part(const pivot_row &row)
{
    part_weighed own = part_weighed::none();
#pragma unroll 2
    for (int i = 0; i < kTaken; i++) {
        const float4 raw = held_quad(i);
        const float l[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float v = row.value(l[k]), mass = pivot_above::mass_of(v, row.pivot);
            own.join({v > row.pivot ? mass : 0.0f, mass, v});
        }
    }
    return own;
}

/* Sums of the masses that the rules go by. */
struct part_masses {
    weight above, all;

    static __device__ __forceinline__ part_masses none() { return {{0, 0}, {0, 0}}; }
    __device__ __forceinline__ void join(const part_masses &other)
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

__device__ __noinline__ part_masses weigh_part_exactly(pivot_row row)
{
    part_masses own = part_masses::none();
#pragma unroll 1
    for (int i = 0; i < 4 * kTaken; i++) {
        const float v = row.value(shared().logits[place_of_quad(i / 4) + i % 4]);
        const uint64_t mass = gumbel_token_mass(gumbel_exp(v - row.largest));
        own.all.add(mass);
        own.above.add(v > row.pivot ? mass : 0);
    }
    return own;
}

/* -------------------------------------------------------------------------------- drawing ---- */

struct part_winner {
    draw_winner best;

    static __device__ __forceinline__ part_winner none() { return {draw_winner_none()}; }
    __device__ __forceinline__ void join(const part_winner &other)
    {
        draw_winner_offer(best, other.best.score, other.best.z, other.best.id);
    }
    __device__ __forceinline__ void join_warp() { best = draw_winner_of_warp(best); }
};

/* z of a quad's tokens, -inf for those that do not lie above the pivot. */
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

/* What J of the blocks of the part that lie above the pivot are sure to reach. */
__device__ __forceinline__ float sure_of_part(const pivot_row &row, const turn_blocks &blocks,
                                              int64_t begin)
{
    static_assert(kTaken <= kTurns, "one look at all blocks");
    const int64_t at = blocks.most_likely() - begin;
    const float logit = at < kHeld ? shared().logits[at] : -INFINITY;
    const float z = row.value(logit) > row.pivot ? logit * row.unit * row.values.inverse_temperature
                                                 : -INFINITY;
    const float floor =
        draw_score_bound_of_warp(draw_score_bound_of_word(false, z, blocks.block.r));
    if (threadIdx.x == 0)
        shared().sure = ordered_bits(-INFINITY);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        atomicMax(&shared().sure, ordered_bits(floor));
    __syncthreads();
    return ordered_float(shared().sure);
}

/* The best of the part's tokens above the pivot, in the call's noise, of those that reach a score;
 * NaN: of all. */
__device__ __noinline__ part_winner draw_part(pivot_row row, int64_t begin, float least_score)
{
    const draw_philox philox = draw_philox_of(row.stream);
    const uint32_t own = (uint32_t)(begin + place_of_quad(0));
    const turn_blocks blocks =
        turn_blocks::from_philox(philox, own - 4 * (threadIdx.x % 32), 4 * kGroupThreads);
    const float threshold =
        isnan(least_score) ? sure_of_part(row, blocks, begin) : draw_threshold(least_score);
    draw_winner best = draw_winner_none();
#pragma unroll 2
    for (int k = 0; k < kTaken; k++) {
        const uint32_t token = own + 4 * k * kGroupThreads;
        const four z = above_pivot(row, held_quad(k));
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
