/* SPDX-License-Identifier: Apache-2.0
 *
 * A row with top_p alone that is drawn before it is truncated (head: truncated_pivots.cu): its
 * parameters, and sums of the masses above the pivot in floats or integers.
 */
#ifndef GUMBEL_CUDA_TRUNCATED_PIVOTS_CUH
#define GUMBEL_CUDA_TRUNCATED_PIVOTS_CUH

#include "cuda/truncated/pivots/split_draw.cuh"
#include "cuda/truncated/row/pivot.cuh"
#include "cuda/truncated/row/pivot_filters.cuh"

namespace
{

/* Parameters and progress of a row. */
struct pivot_row : split_row {
    gumbel_rules rules;
    float pivot, largest; /* values; `largest` is set before exact sums */
};

static_assert(sizeof(split_shared) <= CUDA_PIVOT_BYTES, "the launcher reserves that much");

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
    each_own_value(row, [&](float v) {
        const float mass = pivot_sums::mass_of(v, row.pivot);
        own.join({v > row.pivot ? mass : 0.0f, mass, v});
    });
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
        const float v = row.value(split_memory().logits[place_of_quad(i / 4) + i % 4]);
        const uint64_t mass = gumbel_token_mass(gumbel_exp(v - row.largest));
        own.all.add(mass);
        own.above.add(v > row.pivot ? mass : 0);
    }
    return own;
}

} // namespace

#endif
