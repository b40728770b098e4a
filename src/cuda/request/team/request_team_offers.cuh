/* SPDX-License-Identifier: Apache-2.0
 *
 * A draw from a CTA's share: tokens that may win are offered, a few, as warps share what they are
 * sure to reach, and scored at the end, side by side.
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

__device__ __forceinline__ uint32_t word_of(uint4 words, int i)
{
    return i & 2 ? (i & 1 ? words.w : words.z) : i & 1 ? words.y : words.x;
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
        float score = own.y + noise_of_token(shared().row.draw.stream, (uint32_t)own.id);
        draw_winner_offer(best, score, own.y, own.id);
    }
    return best;
}

/* Ask for what the row is sure to reach; screen_by() has the answer, which is some 50 cycles away.
 * By whole warps. */
__device__ __forceinline__ uint32_t ask_sure()
{
    return ptx_add_if(threadIdx.x % 32 == 0, &shared().sure, 0);
}

__device__ __forceinline__ float screen_by(uint32_t asked)
{
    return draw_offset(ordered_float(__reduce_max_sync(~0u, asked)));
}

/* Raise it by tokens of a warp, one a lane or none, whose z is -inf then; the screen. */
__device__ __forceinline__ float raise_sure(float z, uint32_t word)
{
    uint32_t before = 0, sure = ordered_bits(draw_floor_of_warp(
                             z > -INFINITY ? draw_floor(false, z, word) : -INFINITY));
    if (threadIdx.x % 32 == 0)
        before = atomicMax(&shared().sure, sure);
    return screen_by(max(before, sure));
}

/* Offer those of four neighbours that may win, one a lane at a time: each raises what is sure. z is
 * -inf for those that are not drawn from. By whole warps. */
__device__ __forceinline__ void offer_quad(const float (&z)[4], uint4 words, int32_t id,
                                           float offset)
{
    uint32_t left = 15;
#pragma unroll 1
    for (;;) {
        uint32_t may = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            may |= (uint32_t)(z[i] > -INFINITY && draw_screen(z[i], word_of(words, i), 0, offset))
                   << i;
        may &= left;
        if (!__any_sync(~0u, may))
            return;
        int i = may ? __ffs(may) - 1 : 0;
        float own = may ? (i & 2 ? (i & 1 ? z[3] : z[2]) : i & 1 ? z[1] : z[0]) : -INFINITY;
        uint32_t word = word_of(words, i);
        offset = raise_sure(own, word);
        if (may && draw_screen(own, word, 0, offset))
            offer_token(own, id + i);
        left &= ~(1u << i);
    }
}

} // namespace

#endif
