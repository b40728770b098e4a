/* SPDX-License-Identifier: Apache-2.0
 *
 * The service warps of a draw with a screen. After the draw from a tile they add exact noise to
 * both bounds of each candidate. A lower bound raises the row's best lower bound; a candidate whose
 * upper bound is below the threshold is dropped; the others are kept, and at the end those that can
 * still win go to the list of the call. Late in a product, when other CTAs have published
 * thresholds, the service warps set the filters of the next tile. If a tile has more candidates
 * than fit the list, those that fit raise thresholds, and the tile is filtered again, so that few
 * calls need the full pass.
 *
 * By coarse bounds only products of single tokens raise thresholds. All CTAs publish the token with
 * the largest estimated score of each row; a row's CTAs, in turns, compute the product of this
 * token. A CTA's first tile is filtered twice: first without widths, for the estimates; then with
 * the widths, from the thresholds of all CTAs.
 */
#ifndef GUMBEL_CUDA_SCREEN_SERVE_CUH
#define GUMBEL_CUDA_SCREEN_SERVE_CUH

#include "cuda/fused/screen/screen_ptx.cuh"
#include "cuda/fused/screen/screen_sharpen.cuh"
#include "cuda/fused/screen/screen_thresholds.cuh"

namespace
{

constexpr int kServeWarps = SM90_SERVE_THREADS / 32;
/* Products of single rows that a CTA computes a tile. Each waits once for memory, some 5 us while
 * copies of the screen are queued before it. */
constexpr int kSharpened = 2;

template <int n, class call> class screen_server
{
    const call &s;
    screen_shared<n> &shared;
    const int thread;

  public:
    __device__ __forceinline__ screen_server(const call &params, screen_shared<n> &memory)
        : s(params), shared(memory), thread(threadIdx.x - SM90_DRAW_THREADS)
    {
    }

    __device__ __forceinline__ void serve_consumers() const
    {
        uint32_t parities = 0; /* one bit a consumer */
        int turn = 0, tries = 0;
        start_first_tile(first_token_of(blockIdx.x));
        ptx_barrier_arrive(&shared.served[0]);
        for (int tile = blockIdx.x;;) {
            const int consumer = turn % kScreenConsumers;
            ptx_barrier_wait(&shared.drawn[consumer], parities >> consumer & 1);
            parities ^= 1u << consumer;
            const screen_time time = shared.times[consumer];
            const bool repeats = shared.must_repeat(s, tries);
            const bool estimates = call::coarse && turn == 0 && tries == 0;
            bound_candidates(first_token_of(tile), repeats);
            ptx_named_barrier<3, call::servers>(); /* all candidates have noise */
            tries = repeats ? tries + 1 : 0;
            turn += !repeats;
            tile += repeats ? 0 : (int)gridDim.x;
            if (tile >= s.call.tiles)
                break;
            if (thread == 0) {
                shared.needs_full_pass |=
                    !repeats && shared.candidate_count > CUDA_SCREEN_TILE_QUEUE;
                shared.candidate_count = shared.estimates = 0;
            }
            raise_thresholds(time, tile, repeats, estimates, turn == 1);
            set_tile_filters(tile, time.ended, repeats ? 0 : backoff_cycles(time.took));
            ptx_barrier_arrive(&shared.served[turn % kScreenConsumers]);
            if (call::truncates && tile + (int)gridDim.x >= s.call.tiles)
                stop_threshold_warps(shared);
        }
        if (call::truncates) {
            stop_threshold_warps(shared);
            ptx_named_barrier<3, call::servers>();
            if (thread == 0 &&
                (shared.needs_full_pass || shared.candidate_count > CUDA_SCREEN_TILE_QUEUE))
                s.state->again = 1;
            return;
        }
        if (thread == 0 && shared.candidate_count > CUDA_SCREEN_TILE_QUEUE)
            shared.needs_full_pass = 1;
        list_survivors();
    }

  private:
    /* Raises thresholds after a tile, before the filters of `next_tile` are set; that is the same
     * tile if it repeats. */
    __device__ __forceinline__ void raise_thresholds(screen_time time, int next_tile, bool repeats,
                                                     bool estimates, bool first) const
    {
        if (call::coarse) {
            publish_estimates(time, estimates);
            sharpen_own_rows(repeats, next_tile / (int)gridDim.x);
            if (estimates)
                wait_for_thresholds(s, shared, thread, shared.draws_row(thread));
            free_survivors();
            return;
        }
        if (call::truncates)
            store_maxima(repeats ? next_tile : next_tile - (int)gridDim.x, repeats);
        else
            publish_thresholds(time, repeats, first);
        ptx_named_barrier<3, call::servers>(); /* all thresholds are published */
        if (call::truncates)
            return;
        sharpen_leaders();
        if (thread < 32)
            drop_beaten();
    }

    __device__ __forceinline__ uint32_t first_token_of(int tile) const
    {
        return (uint32_t)s.call.problem.first_token + CUDA_SCREEN_TILE * (uint32_t)tile;
    }

    /* Stores the words from which a consumer computes thresholds in the CTA's first tile. */
    __device__ __forceinline__ void start_first_tile(uint32_t first) const
    {
        if (!shared.draws_row(thread))
            return;
        draw_block words[kTileBlocks];
        copy_allowed(s, shared, thread, first);
        if (!call::truncates)
            words_of_tile(s, shared, thread, first, words);
#pragma unroll
        for (int b = 0; b < kTileBlocks && !call::truncates; b++) {
            shared.first_words[b][thread] = first_word_of(words[b]);
            shared.noisiest_bounds[b][thread] = -INFINITY;
        }
        wait_allowed(s);
        clear_seen_tokens(s, shared, thread, first);
    }

    /* Raises best lower bounds by all candidates of a tile, and keeps the candidates that reach
     * them. */
    __device__ __forceinline__ void bound_candidates(uint32_t first, bool repeats) const
    {
        const uint32_t count = min(shared.candidate_count, (uint32_t)CUDA_SCREEN_TILE_QUEUE);
        for (uint32_t k = thread; k < count; k += call::servers)
            add_noise(shared.candidates[k], first);
        ptx_named_barrier<3, call::servers>();
        if (call::truncates && !repeats) /* a token is listed once */
            list_candidates(count, first);
        else if (!call::truncates && !(call::coarse && shared.estimates))
            keep_survivors(count, first);
    }

    /* Keeps the candidates that reach the best lower bounds. */
    __device__ __forceinline__ void keep_survivors(uint32_t count, uint32_t first) const
    {
        for (uint32_t k = thread; k < count; k += call::servers) {
            const screen_candidate &candidate = shared.candidates[k];
            const uint32_t row = candidate.place & 0xff;
            if (is_beaten(candidate.upper, row))
                continue;
            const uint32_t at = atomicAdd(&shared.survivor_count, 1);
            if (at < shared.survivor_capacity)
                shared.survivors[at] = {candidate.upper, first + (candidate.place >> 8), row,
                                        candidate.lower};
            else
                shared.needs_full_pass = 1;
        }
    }

    /* Turns a candidate's bounds of the logit to bounds of the score, or for truncated rows of the
     * logit after penalties; by coarse bounds, the lower one to the middle of the logit's bounds.
     * NaN and +inf need the full pass. */
    __device__ __forceinline__ void add_noise(screen_candidate &candidate, uint32_t first) const
    {
        const int i = candidate.place & 0xff;
        if (call::truncates) {
            const screen_penalties &row = shared.penalties[i];
            const uint32_t token = first + (candidate.place >> 8);
            if (!(candidate.upper < INFINITY))
                shared.needs_full_pass = 1;
            if (row.slot >= 0) {
                candidate.upper = s.apply_penalties(row, token, candidate.upper);
                candidate.lower = s.apply_penalties(row, token, candidate.lower);
            }
            shared.raise_best(i, candidate.lower, 0);
            return;
        }
        const sm90_draw &draw = shared.draws[i];
        const float scale = s.call.problem.scale;
        float upper = (candidate.upper * scale) * draw.inverse_temperature;
        float lower = (candidate.lower * scale) * draw.inverse_temperature;
        if (!(upper < INFINITY))
            shared.needs_full_pass = 1;
        if (!draw.greedy) {
            const gumbel_stream stream = {draw.seed, draw.position, draw.sample,
                                          s.call.problem.sampling.domain};
            const float noise = draw_token_noise(stream, first + (candidate.place >> 8));
            upper += noise;
            lower += noise;
        }
        if (call::coarse)
            candidate.lower = 0.5f * (candidate.lower + candidate.upper);
        candidate.upper = upper;
        shared.raise_best(i, call::coarse ? estimate_score(lower, upper) : lower,
                          first + (candidate.place >> 8));
    }

    /* An estimate of a score from coarse bounds. Their middle is off by a tenth of the width, one
     * standard deviation, which is subtracted: some 5 of 6 scores exceed the estimate. */
    static __device__ __forceinline__ float estimate_score(float lower, float upper)
    {
        return fmaf(0.45f, upper, 0.55f * lower);
    }

    /* Whether a score of at most `upper` cannot win. */
    __device__ __forceinline__ bool is_beaten(float upper, uint32_t row) const
    {
        return (!call::coarse && upper < shared.best_bound(row)) || upper < shared.thresholds[row];
    }

    /* Lists the candidates of truncated rows that reach their thresholds; one atomic reserves all
     * places of a row. */
    __device__ __forceinline__ void list_candidates(uint32_t count, uint32_t first) const
    {
        constexpr int shift = 16; /* of a candidate's place among those of its row, from 1 on */
        const uint32_t capacity = list_capacity(s);
        for (uint32_t k = thread; k < count; k += call::servers) {
            screen_candidate &candidate = shared.candidates[k];
            const uint32_t row = candidate.place & 0xff;
            if (!(candidate.upper < shared.thresholds[row]))
                candidate.place |= (1 + atomicAdd(&shared.listed[row], 1u)) << shift;
        }
        ptx_named_barrier<3, call::servers>();
        if (shared.draws_row(thread) && shared.listed[thread] > 0)
            shared.listed[thread] = atomicAdd(listed_of_row(s, thread), shared.listed[thread]);
        ptx_named_barrier<3, call::servers>();
        for (uint32_t k = thread; k < count; k += call::servers) {
            const screen_candidate &candidate = shared.candidates[k];
            const uint32_t row = candidate.place & 0xff, place = candidate.place >> shift;
            if (place == 0)
                continue;
            const uint32_t at = shared.listed[row] + place - 1;
            if (at < capacity)
                s.listed[row * s.listed_stride + at] = {candidate.upper, candidate.lower,
                                                        first + (candidate.place >> 8 & 0xff), 0};
            else
                shared.needs_full_pass = 1;
        }
    }

    /* Stores the maxima of a tile, for truncated rows, and resets them. */
    __device__ __forceinline__ void store_maxima(int tile, bool repeats) const
    {
        if (!shared.draws_row(thread))
            return;
        store_tile_max(s, shared, thread, tile);
        shared.listed[thread] = 0;
        if (!repeats)
            shared.clear_best(thread);
    }

    /* Raises row i's threshold to its best lower bound and publishes it; returns whether it rose.
     */
    __device__ __forceinline__ bool raise_row_threshold(int i) const
    {
        return raise_to_score(i, shared.best_bound(i));
    }

    /* Raises row i's threshold to a lower bound of a score and publishes it; returns whether it
     * rose. */
    __device__ __forceinline__ bool raise_to_score(int i, float score) const
    {
        const float safe = draw_threshold(score);
        const bool rises = safe > shared.thresholds[i];
        if (rises) {
            shared.thresholds[i] = safe;
            raise_shared(s, shared, i);
        }
        return rises;
    }

    /* Publishes thresholds, and finds the rows that are worth a product of their own: those in
     * which no other CTA has published as much. After the first tile all CTAs publish for all rows,
     * so this CTA waits and reads the shared thresholds; later a product would end too late once
     * half of the tile's time is over. */
    __device__ __forceinline__ void publish_thresholds(screen_time time, bool repeats,
                                                       bool first) const
    {
        bool leads = shared.draws_row(thread) && raise_row_threshold(thread) && !repeats;
        if (first && !repeats) {
            sm90_wait_cycles(time.ended, backoff_cycles(time.took));
            if (leads) {
                const uint64_t word = load_threshold(shared_threshold(s, thread));
                leads =
                    pack_threshold(shared.thresholds[thread]) >= word % (1ull << THRESHOLD_BITS);
            }
        } else if ((uint32_t)clock() - time.ended > time.took / 2)
            leads = false;
        const uint32_t ballot = __ballot_sync(~0u, leads);
        if (thread % 32 == 0 && thread < 64)
            shared.leads[thread / 32] = ballot;
    }

    /* By coarse bounds: publishes the best estimates of rows that exceed their thresholds. */
    __device__ __forceinline__ void publish_estimates(screen_time time, bool estimates) const
    {
        if (shared.draws_row(thread)) {
            if (estimates)
                shared.thresholds[thread] = -INFINITY; /* was an estimate */
            if (shared.best_bound(thread) > shared.thresholds[thread])
                atomicMax(shared_estimate(s, thread), shared.best[thread]);
            shared.clear_best(thread);
        }
        if (estimates && s.draws > kSharpened) /* for the estimates of other CTAs */
            sm90_wait_cycles(time.ended, backoff_cycles(time.took));
    }

    /* By coarse bounds: computes products for the rows that this CTA serves, in turns with other
     * CTAs of the row, or `always`. */
    __device__ __forceinline__ void sharpen_own_rows(bool always, int turn) const
    {
        const int members = max(1, (int)gridDim.x / s.draws), member = blockIdx.x / s.draws;
        if (!always && turn % members != member)
            return;
        for (int row = blockIdx.x % s.draws; row < s.draws; row += gridDim.x) {
            if (thread == 0)
                shared.estimate = __ldcg(shared_estimate(s, row));
            ptx_named_barrier<3, SM90_SERVE_THREADS>();
            const unsigned long long estimate = shared.estimate;
            if (shared.draws_row(row) &&
                ordered_float((uint32_t)(estimate >> 32)) > shared.thresholds[row] && estimate != 0)
                sharpen_row(row, (uint32_t)estimate);
            ptx_named_barrier<3, SM90_SERVE_THREADS>(); /* the estimate may change */
            if (thread == 0) /* no other CTA repeats this, unless there is a better token */
                atomicCAS(shared_estimate(s, row), estimate, 0ull);
        }
    }

    /* For a few rows in which this CTA leads, computes the product of the best token itself: its
     * rounding error is smaller than the interval of the screen, so other CTAs drop most of the
     * candidates they would keep. */
    __device__ __forceinline__ void sharpen_leaders() const
    {
        int count = 0;
        for (int word = 0; word < 2; word++)
            for (uint32_t remaining = shared.leads[word]; remaining != 0;
                 remaining &= remaining - 1)
                if (count++ < kSharpened) {
                    const int row = 32 * word + __ffs((int)remaining) - 1;
                    sharpen_row(row, (uint32_t)shared.best[row]);
                }
    }

    /* Raises row i's threshold by the product of a token; for all service threads. */
    __device__ __forceinline__ void sharpen_row(int i, uint32_t token) const
    {
        const gumbel_problem &q = s.call.problem;
        float2 sums = multiply_by_warp(s, i, token, thread);
        if (thread % 32 == 0)
            shared.warp_sums[thread / 32] = sums;
        ptx_named_barrier<3, SM90_SERVE_THREADS>(); /* all sums are written */
        if (thread == 0) {
            const sm90_draw &draw = shared.draws[i];
            for (int warp = 1; warp < kServeWarps; warp++) {
                sums.x += shared.warp_sums[warp].x;
                sums.y += shared.warp_sums[warp].y;
            }
            /* Rounding errors of the full product and of both sums. */
            const float gamma =
                1.01f * (float)s.gamma + (float)(q.hidden_size / 32 + 16) * 0x1p-22f;
            const float lower = sums.x - fmaf(gamma, sums.y, CUDA_SCREEN_TINY);
            float score = (lower * q.scale) * draw.inverse_temperature;
            if (!draw.greedy)
                score += draw_token_noise(
                    {draw.seed, draw.position, draw.sample, q.sampling.domain}, token);
            if (!call::coarse)
                shared.raise_best(i, score, token);
            raise_to_score(i, score);
        }
        ptx_named_barrier<3, SM90_SERVE_THREADS>(); /* the sums may change */
    }

    /* Drops the survivors that can no longer win, by one warp, once the list is half full. */
    __device__ __forceinline__ void drop_beaten() const
    {
        const uint32_t count = min(shared.survivor_count, shared.survivor_capacity);
        uint32_t remaining = 0;
        if (2 * count < shared.survivor_capacity)
            return;
        __syncwarp();
        for (uint32_t at = 0; at < count; at += 32) {
            const bool is_there = at + thread < count;
            const screen_survivor own = shared.survivors[is_there ? at + thread : 0];
            const bool stays = is_there && !is_beaten(own.upper, own.row);
            const uint32_t ballot = __ballot_sync(~0u, stays);
            if (stays)
                shared.survivors[remaining + __popc(ballot & ((1u << thread) - 1))] = own;
            remaining += __popc(ballot);
            __syncwarp();
        }
        if (thread == 0)
            shared.survivor_count = remaining;
    }

    __device__ __forceinline__ void set_tile_filters(int tile, uint32_t ended,
                                                     uint32_t backoff) const
    {
        const bool draws = shared.draws_row(thread);
        gumbel_screen_block blocks[kTileBlocks];
        float noise_bounds[kTileBlocks];
        if (draws) {
            draw_block words[kTileBlocks];
            copy_allowed(s, shared, thread, first_token_of(tile));
            load_blocks(s, tile, blocks);
            if (!call::truncates)
                words_of_tile(s, shared, thread, first_token_of(tile), words);
#pragma unroll
            for (int b = 0; b < kTileBlocks; b++)
                noise_bounds[b] =
                    call::truncates ? 0.0f : draw_reach(shared.draws[thread].greedy, words[b].r);
        }
        sm90_wait_cycles(ended, backoff);
        if (draws) {
            raise_to_shared(s, shared, thread, load_threshold(shared_threshold(s, thread)));
            wait_allowed(s);
            set_filters(s, shared, thread, noise_bounds, blocks);
        }
    }

    /* Appends the survivors that can still win to the list of the call. */
    __device__ __forceinline__ void list_survivors() const
    {
        if (shared.draws_row(thread)) {
            if (!call::coarse)
                raise_row_threshold(thread);
            raise_to_shared(s, shared, thread, load_threshold(shared_threshold(s, thread)));
        }
        ptx_named_barrier<3, SM90_SERVE_THREADS>();
        append_survivors();
        ptx_named_barrier<3, SM90_SERVE_THREADS>();
        if (thread == 0 && shared.needs_full_pass)
            s.state->again = 1;
    }

    /* Moves the survivors to the list of the call if the CTA's list is half full: by coarse bounds
     * a CTA has hundreds. */
    __device__ __forceinline__ void free_survivors() const
    {
        ptx_named_barrier<3, SM90_SERVE_THREADS>(); /* all thresholds are raised */
        const bool is_half_full = 2 * shared.survivor_count >= shared.survivor_capacity;
        if (is_half_full)
            append_survivors();
        ptx_named_barrier<3, SM90_SERVE_THREADS>();
        if (is_half_full && thread == 0)
            shared.survivor_count = 0;
    }

    /* Appends the survivors that can still win to the list of the call. Unless bounds are coarse,
     * prefetches to L2 the weights that the next launch reads. */
    __device__ __forceinline__ void append_survivors() const
    {
        constexpr int stride =
            call::coarse ? CUDA_SCREEN_GROUP_COARSE : CUDA_SCREEN_GROUP_CANDIDATES_MAX;
        cuda_screen_entry *entries = call::coarse ? s.coarse_entries : s.entries;
        uint32_t *listed = call::coarse ? s.state->coarse_listed : s.state->listed;
        const int list_max = min(max(s.header->list_max, 1), GUMBEL_SCREEN_LIST_MAX);
        const uint32_t count = min(shared.survivor_count, shared.survivor_capacity);
        const uint32_t capacity = call::coarse ? stride : CUDA_SCREEN_GROUP_CANDIDATES(list_max);
        for (uint32_t k = thread; k < count; k += call::servers) {
            const screen_survivor own = shared.survivors[k];
            if (is_beaten(own.upper, own.row))
                continue;
            const uint32_t group = own.row / CUDA_SCREEN_GROUP;
            const uint32_t at = atomicAdd(&listed[group], 1);
            if (at >= capacity)
                shared.needs_full_pass = 1;
            else
                entries[group * stride + at] = {own.upper, own.token, own.row,
                                                __float_as_uint(own.middle)};
            if (at < capacity && !call::coarse)
                screen_fetch(weights_of(s, own.token), 2 * (uint32_t)s.call.problem.hidden_size);
        }
    }
};

} // namespace

#endif
