/* SPDX-License-Identifier: Apache-2.0
 *
 * What passes its bound in the Hopper kernel waits in a list of the CTA, which the warps that serve
 * score during the next product, since they are idle then: exact noise is some 600 instructions
 * however few lanes run them. What the list has no room for is scored where it is found. The best
 * token of a draw is replaced whole.
 *
 * RACES  Draw warps put offers between a team's wait for `served` and its arrival at `drawn`. The
 *        serving warps wait for that, score, and make the list empty before they arrive at the
 *        next `served`, whichever team's. Tiles are drawn from one after the other, so one list
 *        serves two teams.
 */
#ifndef GUMBEL_CUDA_OFFERS_SM90_CUH
#define GUMBEL_CUDA_OFFERS_SM90_CUH

#include "cuda/fused/hopper/noise_sm90.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

template <int n, class call> class offer_list
{
    const call &p;
    const shared_sm90<n> &shared;
    const uint32_t first; /* token of the tile */

  public:
    __device__ __forceinline__ offer_list(const call &params, const shared_sm90<n> &memory,
                                          uint32_t first_token)
        : p(params), shared(memory), first(first_token)
    {
    }

    /* Offer a token of the tile, by each lane that has one; `place` as sm90_offer has it. */
    __device__ __forceinline__ void put(bool have, float sum, uint32_t place) const
    {
        const uint32_t at = ptx_atomic_count_if(have, shared.offered);
        if (have && at < shared.room(p))
            shared.offers[-1 - (int)at] = {sum, place};
        else if (have)
            score_apart(p, shared, sum, place, first);
    }

    /* Score all that was put, by threads that share it. */
    __device__ __forceinline__ void score(int thread, int threads) const
    {
        const uint32_t count = min(*shared.offered, shared.room(p));
        for (uint32_t i = thread; i < count; i += threads) {
            const sm90_offer offer = shared.offers[-1 - (int)i];
            score_token(p, shared, offer.sum, offer.place, first);
        }
    }

  private:
    /* Score a token exactly and keep it if it is the draw's best so far. */
    static __device__ __forceinline__ void score_token(const call &p, const shared_sm90<n> &shared,
                                                       float sum, uint32_t place, uint32_t first)
    {
        const int i = place & 0xff;
        const sm90_draw &draw = shared.draws[i];
        const uint32_t token = first + (place >> 8);
        if (!p.allows(i, token))
            return;
        const float z = (sum * p.scale()) * draw.inverse_temperature;
        if (!(z < INFINITY)) {
            atomicOr(&shared.flags[i], isnan(z) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE);
            return;
        }
        float score = z;
        if (!draw.greedy) { /* inline: a call in a call would take registers from the sums */
            const gumbel_stream stream = {draw.seed, draw.position, draw.sample,
                                          p.problem.sampling.domain};
            score += draw_token_noise(stream, token);
        }
        keep_best(&shared.best[i], {score, z, (int)token, 0});
    }

    /* That for warps which hold sums: out of line, as it is rarely run. */
    static __device__ __noinline__ void score_apart(const call &p, const shared_sm90<n> &shared,
                                                    float sum, uint32_t place, uint32_t first)
    {
        score_token(p, shared, sum, place, first);
    }

    static __device__ __forceinline__ void keep_best(sm90_best *best, sm90_best offer)
    {
        sm90_best seen, found = swap_best(best, offer, offer); /* only reads */
        while (offer.score > found.score || (offer.score == found.score && offer.id < found.id)) {
            seen = found;
            found = swap_best(best, seen, offer);
            if (found.id == seen.id && found.score == seen.score)
                return;
        }
    }
};

} // namespace

#endif
