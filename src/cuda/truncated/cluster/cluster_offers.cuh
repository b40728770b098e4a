/* SPDX-License-Identifier: Apache-2.0
 *
 * A draw from a CTA's slice. J is the token with the most noise of its block of 64: the scores of
 * the J of all blocks give a threshold. The few tokens that may exceed the threshold are queued,
 * and scored at the end in parallel.
 */
#ifndef GUMBEL_CUDA_CLUSTER_OFFERS_CUH
#define GUMBEL_CUDA_CLUSTER_OFFERS_CUH

#include "cuda/truncated/cluster/cluster_slice.cuh"

namespace
{

/* Begins a draw; by one thread, between barriers. */
__device__ __forceinline__ void reset_offers() { shared_state().offered = 0; }

/* Queues a token for scoring. */
__device__ __forceinline__ void offer_token(float z, int32_t id)
{
    uint32_t at = atomicAdd(&shared_state().offered, 1);
    if (at < kOffers)
        shared_state().scratch.offers[at] = {z, id};
}

/* Scores this thread's queued token. */
__device__ __forceinline__ draw_winner score_offers()
{
    draw_winner best = draw_winner_none();
    if (threadIdx.x < min(shared_state().offered, (uint32_t)kOffers)) {
        cuda_candidate own = shared_state().scratch.offers[threadIdx.x];
        float score =
            own.y + draw_token_noise_noinline(shared_state().row.draw.stream, (uint32_t)own.id);
        draw_winner_offer(best, score, own.y, own.id);
    }
    return best;
}

} // namespace

#endif
