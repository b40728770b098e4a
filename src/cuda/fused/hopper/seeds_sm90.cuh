/* SPDX-License-Identifier: Apache-2.0
 *
 * The thresholds of a CTA's first tile, by which all of its tokens would else pass. The token of
 * most noise of each block is a candidate whose noise is there, to within a margin, before the
 * product ends: the lanes that hold the sums of these tokens store them, and the thread that a draw
 * belongs to raises its threshold to the better one, and to those of other CTAs.
 *
 * Of a row that no other CTA has a better token of, the 64 tokens of a block pass: with the floors
 * of k CTAs, of one row in k. So a warp that owns draws looks until few of them lead.
 */
#ifndef GUMBEL_CUDA_SEEDS_SM90_CUH
#define GUMBEL_CUDA_SEEDS_SM90_CUH

#include "cuda/fused/hopper/lanes_sm90.cuh"
#include "cuda/fused/hopper/noise_sm90.cuh"
#include "cuda/fused/tile/thresholds_sm90.cuh"

/* About one CTA in this many gives its floor of a row at once: all together, on one address, they
 * would queue for 15 us. The others give theirs where it is higher than what they find. */
#define SM90_SEEDERS 8
/* Between looks at floors, nanoseconds; looks at most, as CTAs end their first tiles 3 us apart;
 * and of a warp's rows those that a CTA may lead in: a quarter of one once 132 CTAs have told. */
#define SM90_SEED_NAP   200
#define SM90_SEED_LOOKS 6
#define SM90_SEED_LEADS 1

namespace
{

template <int n, class call> class tile_seeds
{
    using team = sm90_team<n>;
    static constexpr int groups = sm90_groups<n>; /* of 8 columns */
    static constexpr int rounds = n / 8 / groups; /* in a half */

    const call &p;
    const shared_sm90<n> &shared;
    const int thread; /* in the team */
    const team own_team;

  public:
    __device__ __forceinline__ tile_seeds(const call &params, const shared_sm90<n> &memory,
                                          int index)
        : p(params), shared(memory), thread(index % team::threads), own_team(index)
    {
    }

    /* By those that serve, before anything else is there: the words of the first tile's blocks, and
     * no sums yet. */
    static __device__ __forceinline__ void start(const call &p, const shared_sm90<n> &shared,
                                                 int server, uint32_t first)
    {
        const int all = n * p.samples();
        thresholds<n, call>(p, shared).template each<SM90_SERVE_THREADS>(server, [&](int i, int) {
            const int place = shared.first_bound_of(i);
            draw_block words[CUDA_SM90_BLOCKS];
            words_of_blocks(shared.draws[i], p.problem.sampling.domain, first, words);
#pragma unroll
            for (int b = 0; b < CUDA_SM90_BLOCKS; b++) {
                shared.bounds[b * all + place].first_word = first_word_of(words[b]);
                shared.seeds(all)[b * all + place] = -INFINITY;
            }
        });
    }

    /* By the team, behind that: thresholds from the prepared tile in `sum`, and bounds, instead of
     * the words. The list of offers is free again then. */
    __device__ __forceinline__ void plant(const sm90_sums<n> &sum) const
    {
        const thresholds<n, call> all(p, shared);
        store(sum);
        own_team.sync();
        all.template each<team::threads>(thread, [&](int i, int) {
            shared.thresholds[i] = threshold_of(i);
            if ((blockIdx.x + i) % SM90_SEEDERS == 0)
                all.give_floor(i, 0);
        });
        share(all);
        all.template each<team::threads>(thread, [&](int i, int) {
            float reaches[CUDA_SM90_BLOCKS];
#pragma unroll
            for (int b = 0; b < CUDA_SM90_BLOCKS; b++)
                reaches[b] = draw_reach(shared.draws[i].greedy, word_below(word_of(i, b)));
            all.set_bounds(i, reaches);
        });
        own_team.sync();
    }

  private:
    /* The sums of the tokens of most noise that this thread holds. */
    __device__ __forceinline__ void store(const sm90_sums<n> &sum) const
    {
        const uint32_t place = sm90_place(thread);
        const uint32_t own = (uint32_t)p.problem.first_token + place; /* but for whole blocks */
#pragma unroll 1
        for (int sample = 0; sample < p.samples(); sample++)
#pragma unroll
            for (int half = 0; half < team::halves; half++) {
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
            float *seed = shared.seeds(n * p.samples()) + at + sm90_bound_place<n>(thread % 32, k);
            if (other == 0)
                *seed = v[sm90_sum(k)];
            if (other == 1)
                *seed = v[sm90_sum(k) + 2];
        }
    }

    /* Take floors, and give, until this CTA leads in few of the warp's rows; or in some, by chance,
     * where a look finds nothing new. */
    __device__ __forceinline__ void share(const thresholds<n, call> &all) const
    {
        const uint32_t few = SM90_SEED_LEADS + 64 / gridDim.x;
#pragma unroll 1
        for (int looks = 1; looks <= SM90_SEED_LOOKS; looks++) {
            uint32_t own = 0;
            bool news = looks == 1;
            __nanosleep(SM90_SEED_NAP);
            all.template each<team::threads>(thread, [&](int i, int) {
                const uint64_t floor = all.load_floor(i);
                news |= all.take_floor(i, floor);
                own += all.give_floor(i, floor);
            });
            const uint32_t leads = __reduce_add_sync(~0u, own);
            if (leads <= few || (leads <= 4 * few && !__any_sync(~0u, news)))
                return;
        }
    }

    __device__ __forceinline__ int place_of(int i, int block) const
    {
        return block * n * p.samples() + shared.first_bound_of(i);
    }

    __device__ __forceinline__ uint32_t word_of(int i, int block) const
    {
        return shared.bounds[place_of(i, block)].first_word;
    }

    /* The token that has the most noise of a block of the CTA's first tile. */
    __device__ __forceinline__ uint32_t seed_of(int i, int block) const
    {
        const uint32_t first = (uint32_t)p.problem.first_token + CUDA_SM90_TILE * blockIdx.x;
        return (first & ~(GUMBEL_BLOCK - 1u)) + GUMBEL_BLOCK * block +
               word_of(i, block) % GUMBEL_BLOCK;
    }

    /* What draw i is sure to reach by the tokens that were stored; -inf for none. */
    __device__ __forceinline__ float threshold_of(int i) const
    {
        const sm90_draw &draw = shared.draws[i];
        float threshold = -INFINITY;
#pragma unroll
        for (int b = 0; b < CUDA_SM90_BLOCKS; b++) {
            float z = shared.seeds(n * p.samples())[place_of(i, b)] * p.scale() *
                      draw.inverse_temperature;
            float floor = draw_score_bound_of_word(draw.greedy, z, word_above(word_of(i, b)));
            if (fabsf(floor) < INFINITY && p.allows(i, seed_of(i, b)))
                threshold = fmaxf(threshold, floor);
        }
        return threshold;
    }
};

} // namespace

#endif
