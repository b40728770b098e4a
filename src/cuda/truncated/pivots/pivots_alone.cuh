/* SPDX-License-Identifier: Apache-2.0
 *
 * Serves a row that its CTAs have abandoned, because they did not run at the same time
 * (truncated_pivots.cu): one CTA finds the same token alone, in plain loops over the row in memory.
 * Masses are sums of integers, as in the rules of truncation, so the token does not depend on the
 * order of summation. A pass over V = 151936 takes about 50 us. All code here is inline and has no
 * loop in common with the usual path: a function call, or a common loop, would cost the usual path
 * registers, and 4 us a launch.
 */
#ifndef GUMBEL_CUDA_PIVOTS_ALONE_CUH
#define GUMBEL_CUDA_PIVOTS_ALONE_CUH

#include "cuda/truncated/pivots/truncated_pivots.cuh"

namespace
{

/* Joins the results of the CTA's threads; every thread gets the result. */
template <class T> __device__ __forceinline__ T join_cta(T own)
{
    own.join_warp();
    if (threadIdx.x % 32 == 0)
        *(T *)split_memory().warps[threadIdx.x / 32] = own;
    __syncthreads();
    own = T::empty();
    for (int warp = 0; warp < kGroupWarps; warp++)
        own.join(*(const T *)split_memory().warps[warp]);
    __syncthreads();
    return own;
}

/* Visits all tokens of row b: visit(own, token, value) adds one to a thread's result. Returns the
 * joined results of the CTA. */
template <class T, class F>
__device__ __forceinline__ T join_tokens(const gumbel_problem &q, int64_t b, const pivot_row &row,
                                         F visit)
{
    T own = T::empty();
#pragma unroll 1
    for (int64_t i = q.first_token + threadIdx.x; i < q.end_token; i += kGroupThreads)
        visit(own, (int32_t)i, value_of_token(q, row, b, (int32_t)i));
    return join_cta(own);
}

/* Finds the token of row b by pivots; the first pivot is `token`, the winner of the plain draw.
 * Returns no winner if `token` itself is in the kept set. */
__device__ __forceinline__ draw_winner find_token_alone(const cuda_truncated_params &p, int64_t b,
                                                        int32_t token)
{
    const gumbel_problem &q = p.problem;
    pivot_row row = load_pivot_row(q, b);
    draw_winner winner = draw_winner_none();
    const auto find_largest = [](split_float_sums &own, int32_t, float v) { own.join({0, 0, v}); };
    const auto sum = [&](split_exact_sums &own, int32_t, float v) {
        const uint64_t mass = gumbel_token_mass(gumbel_exp(v - row.largest));
        own.all.add(mass);
        own.above.add(v > row.pivot ? mass : 0);
    };
    const auto draw = [&](split_winner &own, int32_t i, float v) {
        const float z = row.values.before ? v * row.values.inverse_temperature : v;
        if (v > row.pivot)
            draw_winner_offer(own.best, z + draw_token_noise_noinline(row.stream, (uint32_t)i), z,
                              i);
    };
    row.largest = join_tokens<split_float_sums>(q, b, row, find_largest).largest;
    row.pivot = value_of_token(q, row, b, token);
    while (true) {
        const split_exact_sums sums = join_tokens<split_exact_sums>(q, b, row, sum);
        if (sums.above.value() < gumbel_nucleus_mass(row.rules.top_p, sums.all.value()))
            return winner;
        winner = join_tokens<split_winner>(q, b, row, draw).best;
        if (winner.id < 0)
            return winner;
        row.pivot = value_of_token(q, row, b, winner.id);
    }
}

} // namespace

#endif
