/* SPDX-License-Identifier: Apache-2.0
 *
 * Candidates of the Hopper kernel: tokens that passed their block's bound. The consumers append
 * them to a list of the CTA, and the service warps score them during the next product, when they
 * are idle: exact noise takes some 600 instructions however few lanes run them. A candidate that
 * does not fit the list is scored at once by the consumer. A 128-bit compare-and-swap replaces the
 * best token of a draw.
 *
 * HAZARDS  A consumer appends between its wait for `served` and its arrival at `drawn`. The service
 *        warps wait for `drawn`, then score and empty the list, then arrive at the next `served` of
 *        either consumer. Only one consumer draws at a time, so one list serves both.
 */
#ifndef GUMBEL_CUDA_CANDIDATES_SM90_CUH
#define GUMBEL_CUDA_CANDIDATES_SM90_CUH

#include "cuda/fused/hopper/noise_sm90.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"
#include "cuda/fused/tile/tops_sm90.cuh"

namespace
{

template <int n, class call> class sm90_candidate_list
{
    const call &p;
    const shared_sm90<n> &shared;
    const uint32_t first; /* token of the tile */

  public:
    __device__ __forceinline__ sm90_candidate_list(const call &params, const shared_sm90<n> &memory,
                                                   uint32_t first_token)
        : p(params), shared(memory), first(first_token)
    {
    }

    /* Appends a token of the tile, for each lane with `have`; `place` is that of sm90_candidate. */
    __device__ __forceinline__ void add(bool have, float sum, uint32_t place) const
    {
        const uint32_t at = ptx_atomic_count_if(have, shared.candidate_count);
        if (have && at < shared.list_capacity(p))
            shared.candidates[-1 - (int)at] = {sum, place};
        else if (have)
            score_out_of_line(p, shared, sum, place, first);
    }

    /* Scores all candidates of the list; `threads` threads share the work. */
    __device__ __forceinline__ void score_all(int thread, int threads) const
    {
        const uint32_t count = min(*shared.candidate_count, shared.list_capacity(p));
        for (uint32_t i = thread; i < count; i += threads) {
            const sm90_candidate candidate = shared.candidates[-1 - (int)i];
            score_token(p, shared, candidate.sum, candidate.place, first);
        }
    }

  private:
    /* Scores a token exactly and keeps it if it is the draw's best so far. */
    static __device__ __forceinline__ void score_token(const call &p, const shared_sm90<n> &shared,
                                                       float sum, uint32_t place, uint32_t first)
    {
        const int i = place & 0xff;
        const sm90_draw &draw = shared.draws[i];
        const uint32_t token = first + (place >> 8);
        if (!p.template allows_token<n>(i, token))
            return;
        const float z = (sum * p.scale()) * draw.inverse_temperature;
        if (!(z < INFINITY)) {
            atomicOr(&shared.flags[i], isnan(z) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE);
            return;
        }
        if (p.finds_tops())
            offer_top(&shared.tops[i], z, (int)token);
        float score = z;
        if (!draw.greedy) { /* inline: a nested call would take registers from the accumulators */
            const gumbel_stream stream = {draw.seed, draw.position, draw.sample,
                                          p.problem.sampling.domain};
            if (p.finds_tops() && !may_win(stream, shared.thresholds[i], token, z))
                return;
            score += draw_token_noise(stream, token);
        }
        update_best(&shared.best[i], {score, z, (int)token, 0});
    }

    /* Whether the noise of a token's block may lift z to a threshold: not if the token passed for
     * its z alone. */
    static __device__ __forceinline__ bool may_win(const gumbel_stream &stream, float threshold,
                                                   uint32_t token, float z)
    {
        const draw_block block = draw_block_of(draw_philox_of(stream), token);
        return draw_passes_bound(z, draw_bound(threshold, draw_reach(false, block.r)));
    }

    /* score_token() out of line, for warps that hold accumulators and rarely need it. */
    static __device__ __noinline__ void score_out_of_line(const call &p,
                                                          const shared_sm90<n> &shared, float sum,
                                                          uint32_t place, uint32_t first)
    {
        score_token(p, shared, sum, place, first);
    }
};

} // namespace

#endif
