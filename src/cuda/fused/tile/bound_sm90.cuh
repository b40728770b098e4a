/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounds of the logits that truncated rows need, raised while the product runs: the kernel stores a
 * subtile of a tile, 16 tokens, for a row only if its largest logit reaches the row's bound. A
 * bound is a value that at least k tile maxima reach, where the row needs its k largest tokens
 * (row_bound.cuh). The service warps, which have no draw to serve, maintain the bounds: during the
 * whole product, one warp a row reads the tile maxima stored so far and publishes the row's bound,
 * and in each CTA another warp loads the bounds of all rows. A poll takes 6 to 20 us, of which the
 * search takes 1: loads queue behind copies of weights. If a tile takes longer, the first of two
 * consumers waits for bounds, from the maxima of the first wave of 132 tiles, while the other one
 * multiplies. For k = 50, about 50 subtiles of the second wave are stored, then 25, 17 and so on:
 * 4.5% of V = 151936, or 13% if the whole first wave is stored.
 *
 * Maxima are of tokens that the mask allows. If penalties lower tokens that a history has seen,
 * bounds use the maxima of the other tokens. At least k tokens are therefore above every token that
 * is not stored, so the latter cannot affect an output. With a soft-cap, which can make logits
 * equal, all logits are stored.
 *
 * No result depends on a bound: a bound may be late, and no warp waits without limit for one. The
 * code that raises bounds takes 20 us when it first runs, because its instructions are not cached.
 *
 * Bounds are shared thresholds. Maxima that are not stored yet are kNoMaximum once all CTAs have
 * started, which a word counts (cta_counter.cuh); before that, everything read is ignored. The next
 * kernel clears this word for a replay.
 */
#ifndef GUMBEL_CUDA_BOUND_SM90_CUH
#define GUMBEL_CUDA_BOUND_SM90_CUH

#include "cuda/common/row_thresholds.cuh"
#include "cuda/common/cta_counter.cuh"
#include "cuda/fused/tile/row_bound.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

/* Backoff between two polls of a row's maxima, in nanoseconds for each stage of a tile: a fifth of
 * the tile's time. Until the first wave of tiles has ended, the backoff is shorter by kEarlyPolls.
 */
constexpr int kBackoffPerStage = 100, kEarlyPolls = 16;
/* Polls for the start of all CTAs, and nanoseconds between them, before no consumer waits. */
constexpr int kStartPolls = 8, kStartBackoff = 1000;
/* One in kLateTiles tiles of the first wave may be late: the first bound uses the others. */
constexpr int kLateTiles = 8;
/* A NaN that marks a maximum as not stored yet; its key is less than that of every maximum. */
constexpr uint32_t kNoMaximum = ~0u;

/* Service warps of a CTA that stores logits by bounds: the first warp passes bounds to the
 * consumers, and each of the others raises the bound of one row. */
template <int n, class call> class bound_server
{
    const call &p;
    const shared_sm90<n> &shared;
    const int thread, lane;
    bool started = false;

  public:
    __device__ __forceinline__ bound_server(const call &params, const shared_sm90<n> &memory)
        : p(params), shared(memory), thread(threadIdx.x - SM90_DRAW_THREADS), lane(thread % 32)
    {
    }

    /* Clears the maxima and bounds that others read, and counts this CTA as started; for all
     * service threads. */
    __device__ __forceinline__ void clear_shared() const
    {
        for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x)
            for (int i = thread; i < p.problem.batch; i += SM90_SERVE_THREADS)
                maxima_of_row(i)[tile] = __uint_as_float(kNoMaximum);
        if (own_row() < p.problem.batch)
            *bound_word(own_row()) = 0;
        if (thread == 0)
            start_cta_counter(started_counter(), p.tag);
        ptx_named_barrier<3, SM90_SERVE_THREADS>();
        if (thread == 0)
            ptx_atomic_count(started_counter());
    }

    __device__ __forceinline__ bool passes_bounds() const { return thread < 32; }

    /* Loads masks as soon as a consumer has drawn from its last tile, and bounds before each tile
     * ends: late in the time that the previous tile took, but early enough that no consumer waits.
     * Before the CTA's last tile it loads bounds at once, since nothing hides a wait there. */
    __device__ __forceinline__ void pass_bounds()
    {
        constexpr int consumers = sm90_consumer::consumers;
        uint32_t ended = clock();
        int turn = 0;
        for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, turn++) {
            const bool last = tile + (int)gridDim.x >= p.tiles;
            if (turn >= consumers)
                ptx_barrier_wait(&shared.drawn[turn % consumers], (turn / consumers - 1) & 1);
            load_token_bits(turn % consumers, tile);
            if (last && lane == 0)
                atomicOr(&shared.flags[0], SM90_STOP_RAISING);
            if (turn > 0) {
                /* Whether a consumer itself waits for the first bounds, with its first tile. */
                const bool waits = consumers == 2 && turn == 1;
                if (waits)
                    signal_started();
                ptx_barrier_wait(&shared.drawn[(turn - 1) % consumers], (turn - 1) / consumers & 1);
                uint32_t took = (uint32_t)clock() - ended;
                ended += took;
                if (!last && !waits)
                    sm90_wait_cycles(ended, took / 2);
                load_bounds();
            }
            ptx_barrier_arrive(&shared.served[turn % consumers]);
        }
    }

    /* Raises the bound of this warp's row until the CTA's last tile. */
    __device__ __forceinline__ void raise_row_bound()
    {
        const int64_t row = own_row();
        const int count = min(p.tiles, 32 * kMaximaPerLane),
                  early_count = min(count, (int)gridDim.x);
        if (row >= p.problem.batch || (int)(blockIdx.x + gridDim.x) >= p.tiles)
            return; /* no row, or no tile before the last one */
        const row_bound wanted = row_bound_of(p, row);
        const uint32_t backoff = sm90_depths(p) * kBackoffPerStage;
        const int wave = (int)gridDim.x - (int)gridDim.x / kLateTiles;
        if (wanted.rank == 0 && wanted.top_rank == 0)
            return;
        /* The first poll reads nothing; it loads the code, which takes longer than running it. */
        int known = -1;
        float bound = -INFINITY;
        while (!must_stop()) {
            const bool first = known < 0, early = known < wave;
            bound_found found = find_row_bound(maxima_of_row(row),
                                               first   ? 0
                                               : early ? early_count
                                                       : count,
                                               wanted, known);
            known = max(found.present, max(known, wave - 1));
            bound = fmaxf(bound, bound_below(found.bound));
            if (lane == 0 && bound > -INFINITY) /* no other warp writes this word */
                *(volatile uint64_t *)bound_word(row) =
                    p.tag << THRESHOLD_BITS | pack_threshold(bound);
            do
                __nanosleep(known >= wave ? backoff : backoff / kEarlyPolls);
            while (!all_started() && !must_stop());
        }
    }

  private:
    /* Whether no more bounds are needed. A poll takes 6 to 20 us: polls that began later delayed
     * the end of the CTA by 1% at 64 rows. */
    __device__ __forceinline__ bool must_stop() const
    {
        return __any_sync(~0u, lane == 0 && (atomicOr(&shared.flags[0], 0) & SM90_STOP_RAISING));
    }

    /* Allows a consumer to wait for bounds, unless some CTAs start late. */
    __device__ __forceinline__ void signal_started()
    {
        for (int i = 0; i < kStartPolls && !all_started(); i++)
            __nanosleep(kStartBackoff);
        if (started && lane == 0)
            atomicOr(&shared.flags[0], SM90_ALL_STARTED);
    }

    /* The row whose bound this warp raises; the batch size if it has none. */
    __device__ __forceinline__ int64_t own_row() const
    {
        return passes_bounds() ? p.problem.batch
                               : blockIdx.x + (int64_t)(thread / 32 - 1) * gridDim.x;
    }

    /* The tile maxima that determine the bound of row b. */
    __device__ __forceinline__ float *maxima_of_row(int64_t b) const
    {
        return (p.unseen_block_maxima ? p.unseen_block_maxima : p.block_maxima) +
               b * p.block_maxima_stride;
    }

    __device__ __forceinline__ uint64_t *bound_word(int64_t b) const
    {
        return &p.row_thresholds[CUDA_THRESHOLD_WORDS * b];
    }

    __device__ __forceinline__ unsigned long long *started_counter() const
    {
        return (unsigned long long *)&p.row_thresholds[1];
    }

    /* Whether all CTAs have started. Each has then cleared the words that it owns. */
    __device__ __forceinline__ bool all_started()
    {
        if (started)
            return true;
        started = __any_sync(~0u, count_ended_ctas(started_counter(), p.tag) == gridDim.x);
        __threadfence();
        return started;
    }

    __device__ __forceinline__ void load_bounds()
    {
        if (!all_started())
            return;
        uint64_t words[(n + 31) / 32]; /* all loads are issued before the first use */
#pragma unroll
        for (int k = 0; k < (n + 31) / 32; k++)
            words[k] =
                lane + 32 * k < p.problem.batch ? load_threshold(bound_word(lane + 32 * k)) : 0;
#pragma unroll
        for (int k = 0; k < (n + 31) / 32; k++)
            if (words[k] > 0 && words[k] >> THRESHOLD_BITS == p.tag)
                shared.thresholds[lane + 32 * k] = unpack_threshold(words[k]);
    }

    /* Loads the bits of a tile's tokens, whose first token is a multiple of 4: of the rows' masks,
     * and of the tokens that their histories have seen. */
    __device__ __forceinline__ void load_token_bits(int consumer, int64_t tile) const
    {
        const gumbel_problem &q = p.problem;
        const gumbel_history &h = q.history;
        const int64_t first = q.first_token + tile * CUDA_SM90_TILE;
        if (q.features & GUMBEL_FEATURE_MASK)
            load_words(shared.masks_of_consumer(consumer), first, q.first_token + q.vocab,
                       [&](int64_t b) {
                           const int32_t *mask = gumbel_problem_mask(&q, b);
                           return [=](int64_t at) { return (uint32_t)mask[at]; };
                       });
        if (p.unseen_block_maxima)
            load_words(shared.seen_of_consumer(consumer), first, h.vocab_size, [&](int64_t b) {
                const int64_t from =
                    gumbel_problem_slot(&q, b) * gumbel_mask_words_of(h.vocab_size);
                const uint32_t *prompt = h.prompt + from, *output = h.output + from;
                return [=](int64_t at) { return prompt[at] | output[at]; };
            });
    }

    /* Copies 128 mask bits from token `first` on, which ends before `end`, for each row, from words
     * that words_of(row)(index) returns. A row's slot is loaded before its words; the loads of the
     * words are then in flight together. */
    template <class F>
    __device__ __forceinline__ void load_words(uint4 *into, int64_t first, int64_t end,
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

/* Serves the consumers of a CTA; for all service threads. */
template <int n, class call>
__device__ __forceinline__ void serve_bounds(const call &p, const shared_sm90<n> &shared)
{
    bound_server<n, call> bounds(p, shared);
    bounds.clear_shared();
    if (bounds.passes_bounds())
        bounds.pass_bounds();
    else
        bounds.raise_row_bound();
}

} // namespace

#endif
