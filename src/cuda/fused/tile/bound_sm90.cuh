/* SPDX-License-Identifier: Apache-2.0
 *
 * Which logits of a request can matter, while the product runs. A strip of a tile, 16 tokens, is
 * stored of a row where the largest of its logits reaches the row's bound: one that as many peaks
 * of tiles reach as its request looks into blocks (request_wanted.cuh). The warps that have no draw
 * to serve raise it: a warp a row looks, all the while, at those of the row's peaks that are there,
 * and tells the CTAs, in each of which another warp brings the bounds of all rows. A look takes 6
 * to 20 us, of which 1 is the search: loads queue behind copies of weights. Where a tile takes
 * longer, the first of two teams waits for bounds by the peaks of the first wave of 132 tiles while
 * the other one multiplies. Then of later tiles 50 strips are stored for k = 50, 25, 17 and so on:
 * 4.5% of V = 151936. With a first wave stored as a whole it is 13%.
 *
 * Peaks are of tokens that the mask leaves; and where penalties lower tokens that a history has
 * seen, bounds go by the peaks of the others. So as many tokens as are wanted are above what is
 * left out for good, and it cannot matter. With a soft-cap some may be equals of it: there all is
 * stored.
 *
 * No result depends on a bound. So bounds may be late, and nobody waits for those that raise them:
 * their code runs cold, the first time for 20 us.
 *
 * Bounds are floors (row_thresholds.cuh), and peaks that are not there yet are kNoPeak, once all
 * CTAs have started, which a word counts (cta_counter.cuh): before that, nothing that is read
 * counts. The request's kernel clears this word, for a replay.
 */
#ifndef GUMBEL_CUDA_BOUND_SM90_CUH
#define GUMBEL_CUDA_BOUND_SM90_CUH

#include "cuda/common/row_thresholds.cuh"
#include "cuda/common/cta_counter.cuh"
#include "cuda/fused/tile/row_bound.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

/* Between two looks at a row's peaks, nanoseconds for each stage of a tile: a fifth of its time;
 * before the first wave of tiles has ended, a part of that. */
constexpr int kNapOfDepth = 100, kEarlyNaps = 16;
/* How often it is asked whether all CTAs have started, nanoseconds apart, before no team waits. */
constexpr int kStartTries = 8, kStartNap = 1000;
/* One in so many of the first wave's tiles may be late: the first bound goes by the others. */
constexpr int kLate = 8;
/* A NaN that no peak is, with the least key of all. */
constexpr uint32_t kNoPeak = ~0u;

/* Of the warps that serve a CTA whose logits are stored by bounds, the first one hands bounds over
 * to the teams, and each of the others raises the bound of a row. */
template <int n, class call> class bound_server
{
    const call &p;
    const shared_sm90<n> &shared;
    const int thread, lane;
    bool started = false; /* all CTAs have */

  public:
    __device__ __forceinline__ bound_server(const call &params, const shared_sm90<n> &memory)
        : p(params), shared(memory), thread(threadIdx.x - SM90_DRAW_THREADS), lane(thread % 32)
    {
    }

    /* All threads: clear what others look at, and say so. */
    __device__ __forceinline__ void start() const
    {
        for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x)
            for (int i = thread; i < p.problem.batch; i += SM90_SERVE_THREADS)
                looked_at(i)[tile] = __uint_as_float(kNoPeak);
        if (own_row() < p.problem.batch)
            *word(own_row()) = 0;
        if (thread == 0)
            start_cta_counter(count_of_started(), p.tag);
        ptx_named_barrier<3, SM90_SERVE_THREADS>();
        if (thread == 0)
            ptx_atomic_count(count_of_started());
    }

    __device__ __forceinline__ bool hands_over() const { return thread < 32; }

    /* Bring masks as soon as a team has drawn from its last tile, and bounds before each tile ends:
     * late in the time that the one before took, but not so late that a team would wait; before the
     * CTA's last tile at once, since nothing hides a wait there. */
    __device__ __forceinline__ void hand_over()
    {
        constexpr int teams = sm90_team<n>::teams;
        uint32_t ended = clock();
        int turn = 0;
        for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, turn++) {
            const bool last = tile + (int)gridDim.x >= p.tiles;
            if (turn >= teams)
                ptx_barrier_wait(&shared.drawn[turn % teams], (turn / teams - 1) & 1);
            bring_bits(turn % teams, tile);
            if (last && lane == 0)
                atomicOr(&shared.flags[0], SM90_ENOUGH);
            if (turn > 0) {
                /* Whether a team waits itself, with its first tile, for the first bounds. */
                const bool waits = teams == 2 && turn == 1;
                if (waits)
                    tell_started();
                ptx_barrier_wait(&shared.drawn[(turn - 1) % teams], (turn - 1) / teams & 1);
                uint32_t took = (uint32_t)clock() - ended;
                ended += took;
                if (!last && !waits)
                    sm90_sleep(ended, took / 2);
                bring_bounds();
            }
            ptx_barrier_arrive(&shared.served[turn % teams]);
        }
    }

    /* Raise the bound of this warp's row until the CTA's last tile. */
    __device__ __forceinline__ void raise()
    {
        const int64_t row = own_row();
        const int count = min(p.tiles, 32 * kPeaksOfLane), early_count = min(count, (int)gridDim.x);
        if (row >= p.problem.batch || (int)(blockIdx.x + gridDim.x) >= p.tiles)
            return; /* no row, or no tile before the last one */
        const row_bound wanted = row_bound_of(p, row);
        const uint32_t nap = sm90_depths(p) * kNapOfDepth;
        const int wave = (int)gridDim.x - (int)gridDim.x / kLate;
        if (wanted.rank == 0 && wanted.top == 0)
            return;
        /* A first look, at nothing, brings the code, which takes longer than to run it. */
        int known = -1;
        float bound = -INFINITY;
        while (!are_enough()) {
            const bool first = known < 0, early = known < wave;
            peaks_found found = look_at_peaks(looked_at(row),
                                              first   ? 0
                                              : early ? early_count
                                                      : count,
                                              wanted, known);
            known = max(found.present, max(known, wave - 1));
            bound = fmaxf(bound, bound_below(found.bound));
            if (lane == 0 && bound > -INFINITY) /* nobody else writes there */
                *(volatile uint64_t *)word(row) = p.tag << THRESHOLD_BITS | pack_threshold(bound);
            do
                __nanosleep(known >= wave ? nap : nap / kEarlyNaps);
            while (!have_started() && !are_enough());
        }
    }

  private:
    /* Whether no more bounds are wanted. A look takes 6 to 20 us: those that began later kept the
     * CTA from its end, for 1% of 64 rows. */
    __device__ __forceinline__ bool are_enough() const
    {
        return __any_sync(~0u, lane == 0 && (atomicOr(&shared.flags[0], 0) & SM90_ENOUGH));
    }

    /* Let a team wait for bounds, unless CTAs are late to start. */
    __device__ __forceinline__ void tell_started()
    {
        for (int i = 0; i < kStartTries && !have_started(); i++)
            __nanosleep(kStartNap);
        if (started && lane == 0)
            atomicOr(&shared.flags[0], SM90_STARTED);
    }

    /* Of this warp; past the batch where it has none. */
    __device__ __forceinline__ int64_t own_row() const
    {
        return hands_over() ? p.problem.batch : blockIdx.x + (int64_t)(thread / 32 - 1) * gridDim.x;
    }

    /* The peaks of a row that its bound goes by. */
    __device__ __forceinline__ float *looked_at(int64_t b) const
    {
        return (p.unseen_block_maxima ? p.unseen_block_maxima : p.block_maxima) +
               b * p.block_maxima_stride;
    }

    __device__ __forceinline__ uint64_t *word(int64_t b) const
    {
        return &p.row_thresholds[CUDA_THRESHOLD_WORDS * b];
    }

    __device__ __forceinline__ unsigned long long *count_of_started() const
    {
        return (unsigned long long *)&p.row_thresholds[1];
    }

    /* Whether all CTAs have; what they cleared is then clear. */
    __device__ __forceinline__ bool have_started()
    {
        if (started)
            return true;
        started = __any_sync(~0u, count_ended_ctas(count_of_started(), p.tag) == gridDim.x);
        __threadfence();
        return started;
    }

    __device__ __forceinline__ void bring_bounds()
    {
        if (!have_started())
            return;
        uint64_t floors[(n + 31) / 32]; /* all asked for at once */
#pragma unroll
        for (int k = 0; k < (n + 31) / 32; k++)
            floors[k] = lane + 32 * k < p.problem.batch ? load_threshold(word(lane + 32 * k)) : 0;
#pragma unroll
        for (int k = 0; k < (n + 31) / 32; k++)
            if (floors[k] > 0 && floors[k] >> THRESHOLD_BITS == p.tag)
                shared.thresholds[lane + 32 * k] = unpack_threshold(floors[k]);
    }

    /* Bring the bits of a tile's tokens, from any token divisible by 4 on: of the rows' masks, and
     * of what their histories have seen. */
    __device__ __forceinline__ void bring_bits(int team, int64_t tile) const
    {
        const gumbel_problem &q = p.problem;
        const gumbel_history &h = q.history;
        const int64_t first = q.first_token + tile * CUDA_SM90_TILE;
        if (q.request & GUMBEL_REQUEST_MASK)
            bring_words(shared.masks_of_team(team), first, q.first_token + q.vocab, [&](int64_t b) {
                const int32_t *mask = gumbel_problem_mask(&q, b);
                return [=](int64_t at) { return (uint32_t)mask[at]; };
            });
        if (p.unseen_block_maxima)
            bring_words(shared.seen_of_team(team), first, h.vocab_size, [&](int64_t b) {
                const int64_t from = gumbel_problem_slot(&q, b) * gumbel_words_of(h.vocab_size);
                const uint32_t *prompt = h.prompt + from, *output = h.output + from;
                return [=](int64_t at) { return prompt[at] | output[at]; };
            });
    }

    /* Those from a token on, which ends before `end`, of words that words_of(row)(which) gives. A
     * row's slot is looked up before its words, which are then asked for side by side. */
    template <class F>
    __device__ __forceinline__ void bring_words(uint4 *into, int64_t first, int64_t end,
                                                F words_of) const
    {
        for (int i = lane; i < p.problem.batch; i += 32) {
            const auto word = words_of(i);
            uint32_t words[5];
#pragma unroll
            for (int k = 0; k < 5; k++)
                words[k] = 32 * (first / 32 + k) < end ? word(first / 32 + k) : 0;
            auto of = [&](int k) {
                return (uint32_t)(((uint64_t)words[k + 1] << 32 | words[k]) >> first % 32);
            };
            into[i] = {of(0), of(1), of(2), of(3)};
        }
    }
};

/* Serve the teams of a CTA, all threads that do. */
template <int n, class call>
__device__ __forceinline__ void serve_bounds(const call &p, const shared_sm90<n> &shared)
{
    bound_server<n, call> bounds(p, shared);
    bounds.start();
    if (bounds.hands_over())
        bounds.hand_over();
    else
        bounds.raise();
}

} // namespace

#endif
