/* SPDX-License-Identifier: Apache-2.0
 *
 * Noise of a warp's row: reaches (upper bounds of the noise of blocks), thresholds, and scores of
 * tokens that may win (head: logits.cu).
 */
#ifndef GUMBEL_CUDA_LOGITS_SCORE_CUH
#define GUMBEL_CUDA_LOGITS_SCORE_CUH

#include "cuda/logits/logits_row.cuh"

namespace
{

/* Groups of 64 blocks at a split's beginning whose J, the tokens with the most noise, give the
 * first threshold: this many over all samples, at least one a sample. More would read the row
 * twice. */
constexpr int kInitialGroups = 4;

template <gumbel_dtype dtype, bool given, bool edited>
struct warp_scores : warp_row<dtype, edited> {
    using row = warp_row<dtype, edited>;
    using row::is_valid, row::transform;
    using row::p, row::state, row::begin, row::end, row::place, row::warp, row::lane;

    const float *noise;  /* address of token 0's noise in the first sample */
    float *reaches;      /* [sample][block] of the window, packed */
    int blocks, samples; /* of the window; of this CTA */

    __device__ __forceinline__ const draw_philox &philox_of(int sample) const
    {
        return state.philox[sample];
    }

    /* Adds given noise to z. */
    __device__ __forceinline__ void add_noise(uint32_t base, int sample, four (&x)[kQuads]) const
    {
        const float *from = noise + sample * p.problem.sampling.noise_stride;
#pragma unroll 1
        for (int k = 0; k < kQuads; k++) {
            four next = x[0];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t token = base + place + kStride * k + i;
                bool has = is_valid(token, token + 1) && !state.greedy;
                next.v[i] += has ? __ldg(from + token) : 0.0f;
            }
            x[0] = x[1], x[1] = x[2], x[2] = x[3], x[3] = next;
        }
    }

    /* The packed reach of this lane's block in a step. */
    __device__ __forceinline__ float reach_of(uint32_t base, int sample) const
    {
        return reaches[sample * blocks + (base - begin) / GUMBEL_BLOCK + lane / 4];
    }

    /* -------------------------------------------------------------------------- thresholds ---- */

    /* Requests the threshold of a lane's sample, if `reads`; the latency is about 50 cycles. */
    __device__ __forceinline__ uint32_t read_threshold(bool reads, int sample) const
    {
        return ptx_atomic_add_if(reads, &state.threshold[sample], 0);
    }

    /* Raises a sample's threshold to the largest bound of the lanes. */
    __device__ __forceinline__ void raise_sample(int sample, float bound) const
    {
        bound = draw_score_bound_of_warp(bound);
        if (lane == 0)
            atomicMax(&state.threshold[sample], ordered_bits(bound));
    }

    /* Computes the reaches of 64 blocks in a sample, two a lane; with `initial`, their J raise the
     * threshold. */
    __device__ __forceinline__ void make_reaches(int sample, uint32_t pair, bool initial) const
    {
        const bool greedy = state.greedy;
        const uint4 words = draw_philox_words(philox_of(sample), pair, GUMBEL_BLOCK_DOMAIN);
        uint32_t tokens[2];
        typename row::element logits[2];
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t first = (2 * pair + half) * GUMBEL_BLOCK;
            const draw_block block = draw_block_in(words, first);
            const uint32_t at = (first - begin) / GUMBEL_BLOCK;
            if (first >= begin && at < (uint32_t)blocks)
                reaches[sample * blocks + at] =
                    draw_pack_reach(draw_reach(greedy, block.r), block.max_noise_index());
            tokens[half] = first + block.max_noise_index();
            if (initial)
                logits[half] = row::read_one(tokens[half]);
        }
        if (!initial)
            return;
        float bound = -INFINITY;
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            const float z = transform(half ? tokens[1] : tokens[0], half ? logits[1] : logits[0]);
            bound = fmaxf(bound, draw_score_bound_of_word(greedy, z, half ? words.z : words.x));
        }
        raise_sample(sample, bound);
    }

    /* Computes the reaches of all blocks and samples of the window, by all warps. */
    __device__ __forceinline__ void make_window_bounds(bool initial) const
    {
        const uint32_t first = begin / (2 * GUMBEL_BLOCK);
        const int groups = (blocks + 1 + 63) / 64; /* the first half of a pair may lie outside */
#pragma unroll 1
        for (int i = warp; i < samples * groups; i += kWarps) {
            const int group = i % groups;
            make_reaches(i / groups, first + 32 * group + lane,
                         initial && group * samples < kInitialGroups);
        }
    }

    /* With given noise, a token of each lane gives the first threshold. */
    __device__ __forceinline__ void raise_by_given_noise() const
    {
        const uint32_t token = begin + warp * kStep + place;
        const float z = transform(token);
#pragma unroll 1
        for (int s = 0; s < samples; s++) {
            bool adds = z > -INFINITY && !state.greedy;
            raise_sample(s, adds ? z + noise[s * p.problem.sampling.noise_stride + token] : z);
        }
    }

    /* ------------------------------------------------------------------------------- score ---- */

    /* The score of a token; NaN if it cannot reach the threshold. */
    __device__ __forceinline__ float score(int sample, uint32_t token, float z,
                                           float threshold) const
    {
        if (state.greedy)
            return z;
        if constexpr (given)
            return z + noise[sample * p.problem.sampling.noise_stride + token];
        const float reach = reaches[sample * blocks + (token - begin) / GUMBEL_BLOCK];
        const draw_philox f = philox_of(sample);
        uint32_t r = 0;
        if (token % GUMBEL_BLOCK != draw_place_of_reach(reach)) {
            r = draw_select_word(draw_philox_words(f, token / 4, 0), token);
            if (!draw_passes_filter(z, draw_min_exponential_of_reach(reach), r,
                                    draw_filter_offset(threshold)))
                return NAN;
        }
        return z + draw_noise_from_words(draw_block_of(f, token), token, r);
    }

    /* Keeps the best of the lanes' scores, of any samples, and raises thresholds. */
    __device__ __forceinline__ void keep_best(int sample, const draw_winner &own) const
    {
        uint32_t pending = __ballot_sync(~0u, own.id >= 0);
#pragma unroll 1
        while (pending) {
            const int s = __shfl_sync(~0u, sample, __ffs(pending) - 1);
            const bool mine = own.id >= 0 && sample == s;
            const draw_winner found = draw_winner_of_warp(mine ? own : draw_winner_none());
            pending &= ~__ballot_sync(~0u, mine);
            if (lane == 0) {
                draw_winner all = state.best[warp][s];
                draw_winner_offer(all, found.score, found.z, found.id);
                state.best[warp][s] = all;
                atomicMax(&state.threshold[s], ordered_bits(draw_threshold(all.score)));
            }
        }
    }

    /* Scores the first 32 tokens of the warp's list, one per lane. */
    __device__ __forceinline__ void score_listed(uint32_t base, int count) const
    {
        const bool has = lane < count;
        const uint32_t own = has ? state.lists[warp][lane] : 0;
        const int sample = own / kStep;
        const uint32_t token = base + own % kStep;
        const float threshold = ordered_float(read_threshold(has, sample));
        draw_winner best = draw_winner_none();
        uint32_t flags = 0;
        if (has) {
            const float z = transform(token);
            if (!(z < INFINITY))
                flags = isnan(z) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE;
            else if (z > -INFINITY)
                draw_winner_offer(best, score(sample, token, z, threshold), z, (int)token);
        }
        __syncwarp();
        keep_best(sample, best);
        if (__any_sync(~0u, flags)) {
            flags = __reduce_or_sync(~0u, flags);
            if (lane == 0)
                state.flags[warp] |= flags;
        }
    }
};

} // namespace

#endif
