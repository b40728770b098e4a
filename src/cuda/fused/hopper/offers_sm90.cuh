/* SPDX-License-Identifier: Apache-2.0
 *
 * What passes the Hopper kernel's screen waits in a list of its warp, for later tiles too, until 32
 * lanes can score an offer each: the exact noise is some 400 instructions however few lanes run
 * them, and the other warps would wait. The best token of a draw is replaced whole.
 */
#ifndef GUMBEL_CUDA_OFFERS_SM90_CUH
#define GUMBEL_CUDA_OFFERS_SM90_CUH

#include "cuda/fused/hopper/noise_sm90.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

/* Tiles of a CTA that an offer can tell apart. */
#define SM90_TURNS (1 << 17)

namespace
{

/* What a list is from tile to tile. */
struct sm90_list {
    int first_tile, turn; /* the tile is gridDim.x * turn past the first one */
    int waiting;          /* offers in the warp's list */
};

template <int n, class call> class offer_list
{
    const call &p;
    const shared_sm90<n> &shared;
    sm90_list &state;
    int lane, warp;

  public:
    __device__ __forceinline__ offer_list(const call &params, const shared_sm90<n> &memory,
                                          sm90_list &list, int thread)
        : p(params), shared(memory), state(list), lane(thread % 32), warp(thread / 32)
    {
    }

    static __device__ __forceinline__ sm90_list start(int team)
    {
        return {(int)blockIdx.x, team - sm90_team<n>::teams, 0};
    }

    /* Go on to the team's next tile. */
    __device__ __forceinline__ void start_tile()
    {
        state.turn += sm90_team<n>::teams;
        if (state.turn < SM90_TURNS)
            return;
        settle();
        state.first_tile += state.turn * (int)gridDim.x;
        state.turn = 0;
    }

    /* The token at a place of the tile. */
    __device__ __forceinline__ uint32_t token_of(uint32_t place) const
    {
        return token_of(state.turn, place);
    }

    /* Score every offer that waits. */
    __device__ __forceinline__ void settle()
    {
        __syncwarp();
        score(state.waiting);
        state.waiting = 0;
    }

    /* By a whole warp: take the offers of the lanes that have one. */
    __device__ __forceinline__ void put(bool have, float z, int draw, uint32_t place)
    {
        sm90_offer *list = own_list();
        uint32_t lanes = __ballot_sync(~0u, have);
        if (have)
            list[state.waiting + __popc(lanes & ((1u << lane) - 1))] = {
                z, (uint32_t)draw | place << 8 | (uint32_t)state.turn << 15};
        state.waiting += __popc(lanes);
        __syncwarp();
        if (state.waiting < 32)
            return;
        score(32);
        state.waiting -= 32;
        __syncwarp();
        sm90_offer moved = list[32 + lane];
        __syncwarp();
        list[lane] = moved;
        __syncwarp();
    }

  private:
    __device__ __forceinline__ sm90_offer *own_list() const
    {
        return shared.offers + warp * SM90_OFFERS;
    }

    __device__ __forceinline__ uint32_t token_of(uint32_t turns, uint32_t place) const
    {
        return (uint32_t)p.problem.first_token +
               CUDA_SM90_TILE * (state.first_tile + turns * gridDim.x) + place;
    }

    __device__ __forceinline__ void score(int count) const
    {
        if (lane < count) {
            sm90_offer offer = own_list()[lane];
            int i = offer.place & 0xff;
            uint32_t token = token_of(offer.place >> 15, offer.place >> 8 & 0x7f);
            score_offer(p.problem.sampling.domain, shared.draws[i], offer.z, token, &shared.best[i],
                        &shared.flags[i]);
        }
        __syncwarp();
    }

    /* Score a token exactly and keep it if it is the draw's best so far. */
    static __device__ __noinline__ void score_offer(uint32_t domain, const sm90_draw &draw, float z,
                                                    uint32_t token, sm90_best *best,
                                                    uint32_t *flags)
    {
        if (!(z < INFINITY)) {
            atomicOr(flags, isnan(z) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE);
            return;
        }
        float score = z;
        if (!draw.greedy)
            score += gumbel_of_token({draw.seed, draw.position, draw.sample, domain}, token);
        keep_best(best, {score, z, (int)token, 0});
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
