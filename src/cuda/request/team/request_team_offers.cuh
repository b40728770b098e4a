/* SPDX-License-Identifier: Apache-2.0
 *
 * A draw from a CTA's share: tokens that may win are offered, a few, as J of all blocks tell what
 * is sure to be reached, and scored at the end, side by side.
 */
#ifndef GUMBEL_CUDA_REQUEST_TEAM_OFFERS_CUH
#define GUMBEL_CUDA_REQUEST_TEAM_OFFERS_CUH

#include "cuda/request/team/request_share.cuh"

namespace
{

/* Begin a draw, by one thread, between barriers. */
__device__ __forceinline__ void reset_offers()
{
    shared().offered = 0;
    shared().sure = ordered_bits(-INFINITY);
}

/* Keep a token of that z to be scored. */
__device__ __forceinline__ void offer_token(float z, int32_t id)
{
    uint32_t at = atomicAdd(&shared().offered, 1);
    if (at < kOffers)
        shared().bench.offers[at] = {z, id};
}

/* The best of the tokens that this CTA's threads offered, of this thread's. */
__device__ __forceinline__ draw_winner score_offers()
{
    draw_winner best = draw_winner_none();
    if (threadIdx.x < min(shared().offered, (uint32_t)kOffers)) {
        cuda_candidate own = shared().bench.offers[threadIdx.x];
        float score = own.y + draw_token_noise_noinline(shared().row.draw.stream, (uint32_t)own.id);
        draw_winner_offer(best, score, own.y, own.id);
    }
    return best;
}

/* Raise what the CTA is sure to reach by what lanes of a warp are, NaN or infinite for nothing. */
__device__ __forceinline__ void raise_sure(float floor)
{
    floor = draw_score_bound_of_warp(floor);
    if (threadIdx.x % 32 == 0)
        atomicMax(&shared().sure, ordered_bits(floor));
}

} // namespace

#endif
