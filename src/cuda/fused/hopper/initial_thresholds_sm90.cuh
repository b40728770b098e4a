/* SPDX-License-Identifier: Apache-2.0
 *
 * Initial thresholds: without them all tokens of a CTA's first tile would pass. The noise of each
 * block's token of most noise is known to within a margin before the product ends. The lanes that
 * hold the sums of these tokens store them, and the thread that owns a draw raises the draw's
 * threshold to the best of these scores, and to the thresholds of other CTAs.
 *
 * A CTA leads in a row if no other CTA has published a better token; then all 64 tokens of a block
 * pass. Once k CTAs have published, a CTA leads in one of k rows. A warp that owns draws therefore
 * polls until its CTA leads in few of its rows.
 */
#ifndef GUMBEL_CUDA_INITIAL_THRESHOLDS_SM90_CUH
#define GUMBEL_CUDA_INITIAL_THRESHOLDS_SM90_CUH

#include "cuda/fused/hopper/lanes_sm90.cuh"
#include "cuda/fused/hopper/noise_sm90.cuh"
#include "cuda/fused/tile/thresholds_sm90.cuh"
#include "cuda/fused/tile/tops_sm90.cuh"

/* One CTA in this many publishes its thresholds at once: if all CTAs did, they would queue for 15
 * us on one address. The others publish a threshold that exceeds the shared one. */
#define SM90_EARLY_PUBLISHERS 8
/* Nanoseconds between polls of the shared thresholds; the maximum number of polls, as CTAs end
 * their first tiles up to 3 us apart; and the number of a warp's rows in which the CTA may still
 * lead when polling ends. Once 132 CTAs have published, a CTA leads in a quarter of a row on
 * average. */
#define SM90_EXCHANGE_BACKOFF 200
#define SM90_EXCHANGE_POLLS   6
#define SM90_EXCHANGE_LEADS   1

namespace
{

template <int n, class call> class initial_thresholds
{
    using consumer = sm90_consumer;
    static constexpr int groups = sm90_groups<n>; /* of 8 columns */
    static constexpr int rounds = n / 8 / groups; /* in a half of a tile */

    const call &p;
    const shared_sm90<n> &shared;
    const int thread; /* in the consumer */
    const consumer own_consumer;

  public:
    __device__ __forceinline__ initial_thresholds(const call &params, const shared_sm90<n> &memory,
                                                  int index)
        : p(params), shared(memory), thread(index % consumer::threads), own_consumer(index)
    {
    }

    /* Stores the words of the first tile's blocks, and -inf for each sum; by the service warps,
     * before anything else is known. */
    static __device__ __forceinline__ void store_words(const call &p, const shared_sm90<n> &shared,
                                                       int server, uint32_t first)
    {
        const int all = n * p.sample_count();
        draw_thresholds<n, call>(p, shared).template each<SM90_SERVE_THREADS>(
            server, [&](int i, int) {
                const int place = shared.first_bound_of(i);
                draw_block words[CUDA_SM90_BLOCKS];
                words_of_blocks(shared.draws[i], p.problem.sampling.domain, first, words);
#pragma unroll
                for (int b = 0; b < CUDA_SM90_BLOCKS; b++) {
                    shared.bounds[b * all + place].first_word = first_word_of(words[b]);
                    shared.initial_sums(all)[b * all + place] = -INFINITY;
                }
            });
    }

    /* Sets thresholds from the prepared tile in `sum`, and replaces the words by bounds; by the
     * consumer, after store_words(). Frees the space of the list of candidates. */
    __device__ __forceinline__ void set_thresholds(const sm90_sums<n> &sum) const
    {
        const draw_thresholds<n, call> all(p, shared);
        store_sums(sum);
        if (p.finds_tops())
            store_maxima(sum);
        own_consumer.sync();
        all.template each<consumer::threads>(thread, [&](int i, int) {
            shared.thresholds[i] = initial_threshold(i);
            const bool early = (p.template cta_index<n>() + i) % SM90_EARLY_PUBLISHERS == 0;
            if (early)
                all.publish_threshold(i, 0);
            if (p.finds_tops() && early)
                publish_tops(i, {0, 0});
        });
        exchange_thresholds(all);
        all.template each<consumer::threads>(thread, [&](int i, int) {
            float reaches[CUDA_SM90_BLOCKS];
#pragma unroll
            for (int b = 0; b < CUDA_SM90_BLOCKS; b++)
                reaches[b] = draw_reach(shared.draws[i].greedy, word_below(word_of(i, b)));
            all.set_bounds(i, reaches);
            if (p.finds_tops())
                clear_maxima(i);
        });
        own_consumer.sync();
    }

  private:
    /* Stores the sums of the tokens of most noise that this thread holds. */
    __device__ __forceinline__ void store_sums(const sm90_sums<n> &sum) const
    {
        const uint32_t place = sm90_place(thread);
        const uint32_t own = (uint32_t)p.problem.first_token + place; /* modulo whole blocks */
#pragma unroll 1
        for (int sample = 0; sample < p.sample_count(); sample++)
#pragma unroll
            for (int half = 0; half < consumer::halves; half++) {
                const int at = shared.bounds_of(p, sample, place + 64 * half);
#pragma unroll
                for (int round = 0; round < rounds; round++)
                    store_round(sum[half] + 4 * groups * round, at + 8 * groups * round, own);
            }
    }

    __device__ __forceinline__ void store_round(const float *v, int at, uint32_t own) const
    {
        uint32_t words[2 * groups];
        sm90_load_bounds<n>(shared.bounds + at, thread % 32, words);
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            const uint32_t other = (words[k] ^ own) % GUMBEL_BLOCK;
            float *initial = shared.initial_sums(n * p.sample_count()) + at +
                             sm90_bound_place<n>(thread % 32, k);
            if (other == 0)
                *initial = v[sm90_sum_index(k)];
            if (other == 1)
                *initial = v[sm90_sum_index(k) + 2];
        }
    }

    /* Raises thresholds to the shared ones and publishes its own, until this CTA leads in few of
     * the warp's rows, or in somewhat more when a poll finds nothing new. */
    __device__ __forceinline__ void exchange_thresholds(const draw_thresholds<n, call> &all) const
    {
        const top_thresholds<n, call> tops(p, shared);
        const uint32_t few = SM90_EXCHANGE_LEADS + 64 / p.template cta_count<n>();
#pragma unroll 1
        for (int polls = 1; polls <= SM90_EXCHANGE_POLLS; polls++) {
            uint32_t own = 0;
            bool is_new = polls == 1;
            __nanosleep(SM90_EXCHANGE_BACKOFF);
            all.template each<consumer::threads>(thread, [&](int i, int) {
                const uint64_t word = all.load_shared(i);
                ulonglong2 top_words = {0, 0}; /* loaded at the same time */
                if (p.finds_tops())
                    top_words = tops.load_words(i);
                is_new |= all.raise_to_shared(i, word);
                own += all.publish_threshold(i, word);
                if (p.finds_tops()) {
                    tops.raise_to_words(i, top_words);
                    publish_tops(i, top_words);
                    own += shared.top_thresholds[i] == -INFINITY;
                }
            });
            const uint32_t leads = __reduce_add_sync(~0u, own);
            if (leads <= few || (leads <= 4 * few && !__any_sync(~0u, is_new)))
                return;
        }
    }

    /* The largest sum of each warp's tokens of a column, in the place of the weights, which are
     * still 0. */
    __device__ __forceinline__ float &maximum_of(int warp, int column) const
    {
        return shared.weights[warp * n + column];
    }

    __device__ __forceinline__ void store_maxima(const sm90_sums<n> &sum) const
    {
        const int lane = thread % 32;
#pragma unroll
        for (int round = 0; round < rounds; round++) {
            float largest[2 * groups];
#pragma unroll
            for (int k = 0; k < 2 * groups; k++) {
                const int at = 4 * groups * round + sm90_sum_index(k);
                largest[k] = ptx_max_nan(ptx_max_nan(sum[0][at], sum[0][at + 2]),
                                         ptx_max_nan(sum[1][at], sum[1][at + 2]));
            }
            sm90_join_lanes(largest, lane, ptx_max_nan);
            if (lane < 8 * groups)
                maximum_of(thread / 32, 8 * groups * round + sm90_column(lane, lane / 4)) =
                    largest[0];
        }
    }

    __device__ __forceinline__ void clear_maxima(int i) const
    {
#pragma unroll
        for (int warp = 0; warp < shared_sm90<n>::mass_groups; warp++)
            maximum_of(warp, i) = 0.0f;
    }

    /* Raises the row's bound to the second largest of the stored maxima, and publishes the largest,
     * given the row's words. */
    __device__ __forceinline__ void publish_tops(int i, ulonglong2 words) const
    {
        float largest = -INFINITY, second = -INFINITY;
#pragma unroll
        for (int warp = 0; warp < shared_sm90<n>::mass_groups; warp++) {
            const float z = maximum_of(warp, i) * p.scale() * shared.draws[i].inverse_temperature;
            if (!(fabsf(z) < INFINITY))
                continue;
            second = fmaxf(second, fminf(z, largest));
            largest = fmaxf(largest, z);
        }
        const top_thresholds<n, call> tops(p, shared);
        tops.raise_bound(i, draw_threshold(second));
        tops.publish_largest(i, largest, words);
    }

    __device__ __forceinline__ int bound_index(int i, int block) const
    {
        return block * n * p.sample_count() + shared.first_bound_of(i);
    }

    __device__ __forceinline__ uint32_t word_of(int i, int block) const
    {
        return shared.bounds[bound_index(i, block)].first_word;
    }

    /* The token of most noise in a block of the CTA's first tile. */
    __device__ __forceinline__ uint32_t noisiest_token(int i, int block) const
    {
        const uint32_t first =
            (uint32_t)p.problem.first_token + CUDA_SM90_TILE * (uint32_t)p.template cta_index<n>();
        return (first & ~(GUMBEL_BLOCK - 1u)) + GUMBEL_BLOCK * block +
               word_of(i, block) % GUMBEL_BLOCK;
    }

    /* A lower bound of draw i's best score by the stored tokens; -inf if there is none. */
    __device__ __forceinline__ float initial_threshold(int i) const
    {
        const sm90_draw &draw = shared.draws[i];
        float threshold = -INFINITY;
#pragma unroll
        for (int b = 0; b < CUDA_SM90_BLOCKS; b++) {
            const float z = shared.initial_sums(n * p.sample_count())[bound_index(i, b)] *
                            p.scale() * draw.inverse_temperature;
            float bound = draw_score_bound_of_word(draw.greedy, z, word_above(word_of(i, b)));
            if (fabsf(bound) < INFINITY && p.template allows_token<n>(i, noisiest_token(i, b)))
                threshold = fmaxf(threshold, bound);
        }
        return threshold;
    }
};

} // namespace

#endif
