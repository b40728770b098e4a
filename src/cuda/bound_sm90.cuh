/* SPDX-License-Identifier: Apache-2.0
 *
 * Which logits of a request can matter, while the product runs. A strip of a tile, 16 tokens, is
 * stored of a row where the largest of its logits reaches the row's bound: one that as many peaks
 * of tiles reach as its request looks into blocks (cuda/request_wanted.cuh). The warps that have no
 * draw to serve raise it: a warp a row looks, all the while, at those of the row's peaks that are
 * there, and tells the CTAs, in each of which another warp brings the bounds of all rows. So a
 * first wave of 132 tiles is stored, and for k = 50 of later ones 50 strips, 25, 17 and so on: 13%
 * of V = 151936, where tiles would make it 24%. A look takes 10 to 20 us, of which 1 is the search:
 * loads queue behind copies of weights. So no tile waits for bounds: a first one that did, mostly
 * waited in vain.
 *
 * Peaks are of tokens that the mask leaves; and where penalties lower tokens that a history has
 * seen, bounds go by the peaks of the others. So as many tokens as are wanted are above what is
 * left out for good, and it cannot matter. With a soft-cap alone, some may be equals of it. Then a
 * tile is stored as a whole or not at all, so that its peak bounds what is missing, and a row that
 * turns out to need it is multiplied again.
 *
 * No result depends on a bound. So bounds may be late, and nobody waits for those that raise them:
 * their code runs cold, the first time for 20 us.
 *
 * Bounds are floors (cuda/floor.cuh), and peaks that are not there yet are kNoPeak, once all CTAs
 * have started, which a word counts (cuda/parts.cuh): before that, nothing that is read counts. The
 * request's kernel clears this word, for a replay.
 */
#ifndef GUMBEL_CUDA_BOUND_SM90_CUH
#define GUMBEL_CUDA_BOUND_SM90_CUH

#include "cuda/floor.cuh"
#include "cuda/parts.cuh"
#include "cuda/request_wanted.cuh"
#include "cuda/shared_sm90.cuh"

namespace
{

/* Peaks of a row that a lane looks at: those of tiles past 32 times as many raise no bound. */
constexpr int kPeaksOfLane = 40;
/* Between two looks at a row's peaks, nanoseconds for each stage of a tile: a fifth of its time;
 * before the first wave of tiles has ended, a quarter of that. */
constexpr int kNapOfDepth = 100;
/* One in so many of the first wave's tiles may be late: the first bound goes by the others. */
constexpr int kLate = 8;
/* A NaN that no peak is, with the least key of all. */
constexpr uint32_t kNoPeak = ~0u;
/* A bound may be reached by an eighth more peaks than it must be: each halving is 200 cycles. */
constexpr uint32_t kBoundSlack = 8;
/* One in so many blocks may hold what min_p keeps where a bound can fail: a row with more tokens
 * than one CTA serves needs all that may matter. */
constexpr uint32_t kMinPShare = 8;

/* What bounds the blocks that a row's request looks into, as ranks among its peaks, from 1 on. */
struct row_bound {
    int rank;       /* of a peak that this many tokens wanted reach; 0: nothing asks for them */
    int top;        /* of a peak that the largest logit wanted is not below; 0: no min_p */
    float distance; /* of min_p, in logits */
    uint32_t share; /* min_p may keep one in so many peaks; 0: all */
};

/* That of row b; both ranks are 0 where all of the row can matter. */
__device__ __forceinline__ row_bound row_bound_of(const cuda_params &p, int64_t b)
{
    const gumbel_problem &q = p.problem;
    const request_row row = request_row_of(q, b);
    request_wanted wanted;
    row_bound bound = {0, 0, 0.0f, p.again ? kMinPShare : 0};
    const request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    const float lower = q.scale * fminf(values.inverse_temperature, 1.0f);
    const float upper = q.scale * fmaxf(values.inverse_temperature, 1.0f);
    if (!can_screen(p, row, row.draw.greedy, wanted) || !blocks_bound(q, row) ||
        lower < 1 / kScaleMost || upper > kScaleMost)
        return bound;
    bool by_min_p = wanted.log_min_p > -INFINITY && (wanted.target == 0 || wanted.both);
    if (by_min_p && q.soft_cap != 0.0f)
        return bound;
    if (wanted.target > 0)
        bound.rank = (int)wanted.target;
    if (by_min_p) {
        float unit = q.scale * values.scale();
        bound.top = 1;
        bound.distance = -1.001f * gumbel_min_p_bound(0.0f, wanted.log_min_p) / unit;
    }
    return bound;
}

/* A bound that is so far below `reached` that rounding makes no equals of what lies at it and what
 * lies below the bound, and that leaves out nothing that could become infinite. */
__device__ __forceinline__ float bound_below(float reached)
{
    return fminf(reached, kScaleMost) - fmaxf(fabsf(reached) * 0x1p-18f, 0x1p-38f);
}

/* Peaks of a row, a warp's, as keys whose order is theirs; 0 for those that are not there. */
struct row_peaks {
    uint32_t keys[kPeaksOfLane];

    __device__ __forceinline__ row_peaks(const float *peaks, int count, int lane)
    {
#pragma unroll
        for (int i = 0; i < kPeaksOfLane; i++)
            keys[i] = lane + 32 * i < count ? ordered_bits(__ldcg(&peaks[lane + 32 * i])) : 0;
    }

    /* How many reach a key; in four sums, as one would be a chain. */
    __device__ __forceinline__ uint32_t count_from(uint32_t key) const
    {
        uint32_t own[4] = {};
#pragma unroll
        for (int i = 0; i < kPeaksOfLane; i++)
            own[i % 4] += keys[i] >= key;
        return __reduce_add_sync(~0u, own[0] + own[1] + own[2] + own[3]);
    }

    /* What at least `rank` of them reach, and not many more, of which `present` are there; -inf
     * where these are fewer. Halved into, down to what a floor tells apart. */
    __device__ __forceinline__ float reached_by(uint32_t rank, uint32_t present) const
    {
        uint32_t low = ~0u, high = 0;
#pragma unroll
        for (int i = 0; i < kPeaksOfLane; i++) {
            low = min(low, keys[i] - 1); /* wraps for those that are not there */
            high = max(high, keys[i]);
        }
        low = __reduce_min_sync(~0u, low) + 1;
        high = __reduce_max_sync(~0u, high);
        if (rank == 1)
            low = high;
        uint32_t reach = rank <= present ? present : 0;
#pragma unroll 1
        do {
            uint32_t middle = low + (high - low) / 2, upper = count_from(middle);
            low = upper >= rank ? middle : low;
            high = upper >= rank ? high : middle;
            reach = upper >= rank ? upper : reach;
        } while (reach > rank + rank / kBoundSlack && high - low > 1u << (32 - FLOOR_BITS));
        return reach && low > ordered_bits(-INFINITY) ? ordered_float(low) : -INFINITY;
    }

    /* What min_p keeps lies above; -inf where that is too much. */
    __device__ __forceinline__ float kept_from(const row_bound &wanted, uint32_t present) const
    {
        float least = reached_by(wanted.top, present) - wanted.distance;
        uint32_t reach = count_from(ordered_bits(least));
        return least < INFINITY && wanted.share * reach <= present ? least : -INFINITY;
    }
};

/* What peaks tell: a bound, and how many there are. */
struct peaks_told {
    float bound;
    int present;
};

/* What a row's first `count` peaks tell; by a warp. Where no more are there than `known`, the bound
 * is not looked for. Apart, for its registers. */
__device__ __noinline__ peaks_told look_at_peaks(const float *peaks, int count, row_bound wanted,
                                                 int known)
{
    const row_peaks all(peaks, count, threadIdx.x % 32);
    peaks_told told = {-INFINITY, (int)all.count_from(1)};
    if (told.present <= known)
        return told;
    told.bound = wanted.rank > 0 ? all.reached_by(wanted.rank, told.present) : INFINITY;
    if (wanted.top > 0)
        told.bound = fminf(told.bound, all.kept_from(wanted, told.present));
    return told;
}

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
            parts_start(count_of_started(), p.tag);
        if (blockIdx.x == 0 && thread == 0 && p.again)
            *p.again = 0;
        ptx_named_barrier<3, SM90_SERVE_THREADS>();
        if (thread == 0)
            ptx_count(count_of_started());
    }

    __device__ __forceinline__ bool hands_over() const { return thread < 32; }

    /* Bring masks as soon as a team has drawn from its last tile, and bounds before each tile ends:
     * late in the time that the last one took, but not so late that a team would wait. */
    __device__ __forceinline__ void hand_over()
    {
        constexpr int teams = sm90_team<n>::teams;
        uint32_t ended = clock();
        int turn = 0;
        for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, turn++) {
            if (turn >= teams)
                ptx_barrier_wait(&shared.drawn[turn % teams], (turn / teams - 1) & 1);
            bring_bits(turn % teams, tile);
            if (turn > 0) {
                ptx_barrier_wait(&shared.drawn[(turn - 1) % teams], (turn - 1) / teams & 1);
                uint32_t took = (uint32_t)clock() - ended;
                ended += took;
                sleep(ended, took / 2);
                bring_bounds();
            }
            if (tile + (int)gridDim.x >= p.tiles && lane == 0)
                atomicOr(&shared.flags[0], 1); /* no more bounds are wanted */
            ptx_barrier_arrive(&shared.served[turn % teams]);
        }
    }

    /* Raise the bound of this warp's row until the CTA's last tile. */
    __device__ __forceinline__ void raise()
    {
        const int64_t row = own_row();
        const int count = min(p.tiles, 32 * kPeaksOfLane);
        if (row >= p.problem.batch)
            return;
        const row_bound wanted = row_bound_of(p, row);
        const uint32_t nap = sm90_depths(p) * kNapOfDepth;
        const int wave = (int)gridDim.x - (int)gridDim.x / kLate;
        if (wanted.rank == 0 && wanted.top == 0)
            return;
        /* A first look, at nothing, brings the code, which takes longer than to run it. */
        int known = -1;
        while (!__any_sync(~0u, lane == 0 && atomicOr(&shared.flags[0], 0))) {
            const bool first = known < 0;
            if (!first) {
                __nanosleep(known >= wave ? nap : nap / 4);
                if (!have_started())
                    continue;
            }
            peaks_told told = look_at_peaks(looked_at(row), first ? 0 : count, wanted, known);
            known = max(told.present, max(known, wave - 1));
            if (lane == 0)
                floor_give(word(row), bound_below(told.bound), p.tag);
        }
    }

  private:
    /* Of this warp; past the batch where it has none. */
    __device__ __forceinline__ int64_t own_row() const
    {
        return hands_over() ? p.problem.batch : blockIdx.x + (int64_t)(thread / 32 - 1) * gridDim.x;
    }

    /* The peaks of a row that its bound goes by. */
    __device__ __forceinline__ float *looked_at(int64_t b) const
    {
        return (p.unseen ? p.unseen : p.peaks) + b * p.peaks_stride;
    }

    __device__ __forceinline__ uint64_t *word(int64_t b) const
    {
        return &p.shared_floors[CUDA_FLOOR_WORDS * b];
    }

    __device__ __forceinline__ unsigned long long *count_of_started() const
    {
        return (unsigned long long *)&p.shared_floors[1];
    }

    /* Whether all CTAs have; what they cleared is then clear. */
    __device__ __forceinline__ bool have_started()
    {
        if (started)
            return true;
        started = __any_sync(~0u, parts_ended(count_of_started(), p.tag) == gridDim.x);
        __threadfence();
        return started;
    }

    /* Until so many cycles after a time. */
    static __device__ __forceinline__ void sleep(uint32_t start, uint32_t cycles)
    {
        constexpr int nap = 250; /* nanoseconds */
        while ((uint32_t)clock() - start < cycles)
            __nanosleep(nap);
        __syncwarp();
    }

    __device__ __forceinline__ void bring_bounds()
    {
        if (!have_started())
            return;
        for (int i = lane; i < p.problem.batch; i += 32) {
            uint64_t floor = floor_load(word(i));
            if (floor >> FLOOR_BITS == p.tag)
                shared.reaches[i].threshold = floor_unpack(floor);
        }
    }

    /* Bring the bits of a tile's tokens, from any token divisible by 4 on: of the rows' masks, and
     * of what their histories have seen. */
    __device__ __forceinline__ void bring_bits(int team, int64_t tile) const
    {
        const gumbel_problem &q = p.problem;
        const gumbel_history &h = q.history;
        const int64_t first = q.first_token + tile * CUDA_SM90_TILE;
        if (q.request & GUMBEL_REQUEST_MASK)
            bring_words(shared.masks_of_team(team), first, q.first_token + q.vocab,
                        [&](int64_t b, int64_t at) { return gumbel_problem_mask(&q, b)[at]; });
        if (p.unseen)
            bring_words(shared.seen_of_team(team), first, h.vocab_size, [&](int64_t b, int64_t at) {
                at += b * gumbel_words_of(h.vocab_size);
                return h.prompt[at] | h.output[at];
            });
    }

    /* Those from a token on, which ends before `end`, of words that word(row, which) gives. */
    template <class F>
    __device__ __forceinline__ void bring_words(uint4 *into, int64_t first, int64_t end,
                                                F word) const
    {
        for (int i = lane; i < p.problem.batch; i += 32) {
            uint32_t words[5];
#pragma unroll
            for (int k = 0; k < 5; k++)
                words[k] = 32 * (first / 32 + k) < end ? word(i, first / 32 + k) : 0;
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
