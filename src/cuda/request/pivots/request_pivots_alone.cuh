/* SPDX-License-Identifier: Apache-2.0
 *
 * A row that its CTAs have given up (request_pivots.cu), as they did not run at once: one of
 * them finds the same token alone, in plain loops over the row in memory. Masses are the integers
 * of the rules, so the token is theirs. A pass over V = 151936 takes some 50 us. All of it is
 * inline and shares nothing with the way that is mostly taken: a function of its own, or a loop for
 * both ways, takes registers from that, for 4 us of a call.
 */
#ifndef GUMBEL_CUDA_REQUEST_PIVOTS_ALONE_CUH
#define GUMBEL_CUDA_REQUEST_PIVOTS_ALONE_CUH

#include "cuda/request/pivots/request_pivots.cuh"

namespace
{

/* What the threads of a CTA have found, for all of them. */
template <class T> __device__ __forceinline__ T over_cta(T own)
{
    own.join_warp();
    if (threadIdx.x % 32 == 0)
        *(T *)shared().warps[threadIdx.x / 32] = own;
    __syncthreads();
    own = T::none();
    for (int warp = 0; warp < kGroupWarps; warp++)
        own.join(*(const T *)shared().warps[warp]);
    __syncthreads();
    return own;
}

/* What visit(found, token, value) makes of T::none() over all tokens of row b. */
template <class T, class F>
__device__ __forceinline__ T over_tokens(const gumbel_problem &q, int64_t b, const pivot_row &row,
                                         F visit)
{
    T own = T::none();
#pragma unroll 1
    for (int64_t i = q.first_token + threadIdx.x; i < q.end_token; i += kGroupThreads)
        visit(own, (int32_t)i, value_of_token(q, row, b, (int32_t)i));
    return over_cta(own);
}

/* Find the token of row b by pivots from `token` on, its winner among all; none if that stays. */
__device__ __forceinline__ draw_winner find_token_alone(const cuda_request_params &p, int64_t b,
                                                        int32_t token)
{
    const gumbel_problem &q = p.problem;
    pivot_row row = know_row(q, b);
    draw_winner winner = draw_winner_none();
    const auto find_largest = [](part_weighed &own, int32_t, float v) { own.join({0, 0, v}); };
    const auto weigh = [&](part_masses &own, int32_t, float v) {
        const uint64_t mass = gumbel_token_mass(gumbel_exp(v - row.largest));
        own.all.add(mass);
        own.above.add(v > row.pivot ? mass : 0);
    };
    const auto draw = [&](part_winner &own, int32_t i, float v) {
        const float z = row.values.before ? v * row.values.inverse_temperature : v;
        if (v > row.pivot)
            draw_winner_offer(own.best, z + draw_token_noise_noinline(row.stream, (uint32_t)i), z,
                              i);
    };
    row.largest = over_tokens<part_weighed>(q, b, row, find_largest).largest;
    row.pivot = value_of_token(q, row, b, token);
    while (true) {
        const part_masses sum = over_tokens<part_masses>(q, b, row, weigh);
        if (sum.above.wide() < gumbel_nucleus(row.rules.top_p, sum.all.wide()))
            return winner;
        winner = over_tokens<part_winner>(q, b, row, draw).best;
        if (winner.id < 0)
            return winner;
        row.pivot = value_of_token(q, row, b, winner.id);
    }
}

} // namespace

#endif
