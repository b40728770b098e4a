/* SPDX-License-Identifier: Apache-2.0
 *
 * The warps that serve those that draw. Behind the draw from a tile they add the exact noise to
 * both ends of what passed there. A lower end raises what the row must reach; an upper end that
 * does not reach it is dropped; what is left is kept, and of that, at the end, what still can win
 * goes to the list of the call. Late in a product, when others have told their floors, the next
 * tile is marked. Of a tile that offers more than there is room for, what there was room for raises
 * thresholds, and it is marked and drawn from again, so that few calls are left to the full pass.
 */
#ifndef GUMBEL_CUDA_SCREEN_SERVE_CUH
#define GUMBEL_CUDA_SCREEN_SERVE_CUH

#include "cuda/common/widen.cuh"
#include "cuda/fused/screen/screen_floors.cuh"
#include "cuda/fused/tile/nap_sm90.cuh"

namespace
{

constexpr int kServeWarps = SM90_SERVE_THREADS / 32;
/* Products of single rows that a CTA computes a tile. Each waits once for memory, some 5 us while
 * copies of the screen are queued before it. */
constexpr int kSharpened = 2;
/* Vectors of eight columns that a thread asks for at once. */
constexpr int kSharpAhead = 6;

template <int n, class call> class screen_server
{
    const call &s;
    screen_side<n> &side;
    const int thread;

  public:
    __device__ __forceinline__ screen_server(const call &params, screen_side<n> &memory)
        : s(params), side(memory), thread(threadIdx.x - SM90_DRAW_THREADS)
    {
    }

    __device__ __forceinline__ void serve() const
    {
        uint32_t parities = 0; /* a bit a team */
        int turn = 0, tries = 0;
        start_first_tile(first_token_of(blockIdx.x));
        ptx_barrier_arrive(&side.served[0]);
        for (int tile = blockIdx.x;;) {
            const int team = turn % kScreenTeams;
            ptx_barrier_wait(&side.drawn[team], parities >> team & 1);
            parities ^= 1u << team;
            const screen_time time = side.times[team];
            const bool repeats = side.repeats(tries);
            weigh_offers(first_token_of(tile), repeats);
            ptx_named_barrier<3, call::servers>(); /* all are weighed */
            tries = repeats ? tries + 1 : 0;
            turn += !repeats;
            tile += repeats ? 0 : (int)gridDim.x;
            if (tile >= s.call.tiles)
                break;
            if (thread == 0) {
                side.again |= !repeats && side.offered > CUDA_SCREEN_TILE_QUEUE;
                side.offered = 0;
            }
            if (call::cuts)
                tell_peaks(repeats ? tile : tile - (int)gridDim.x, repeats);
            else
                tell(time, repeats, turn == 1);
            ptx_named_barrier<3, call::servers>(); /* all have told */
            if (!call::cuts)
                sharpen();
            if (!call::cuts && thread < 32)
                drop_beaten();
            mark_tile(tile, time.ended, repeats ? 0 : nap_behind(time.took));
            ptx_barrier_arrive(&side.served[turn % kScreenTeams]);
            if (call::cuts && tile + (int)gridDim.x >= s.call.tiles)
                end_floors(side);
        }
        if (call::cuts) {
            end_floors(side);
            ptx_named_barrier<3, call::servers>();
            if (thread == 0 && (side.again || side.offered > CUDA_SCREEN_TILE_QUEUE))
                s.state->again = 1;
            return;
        }
        if (thread == 0 && side.offered > CUDA_SCREEN_TILE_QUEUE)
            side.again = 1;
        hand_over();
    }

  private:
    __device__ __forceinline__ uint32_t first_token_of(int tile) const
    {
        return (uint32_t)s.call.problem.first_token + CUDA_SCREEN_TILE * (uint32_t)tile;
    }

    /* The words by which a team finds the thresholds of the CTA's first tile. */
    __device__ __forceinline__ void start_first_tile(uint32_t first) const
    {
        if (!side.draws_row(thread))
            return;
        draw_block words[kTileBlocks];
        ask_allowed(s, side, thread, first);
        if (!call::cuts)
            words_of_tile(s, side, thread, first, words);
#pragma unroll
        for (int b = 0; b < kTileBlocks && !call::cuts; b++) {
            side.first_words[b][thread] = first_word_of(words[b]);
            side.seeds[b][thread] = -INFINITY;
        }
        wait_allowed(s);
    }

    /* Raise what rows must reach by all offers, and keep those that reach it. */
    __device__ __forceinline__ void weigh_offers(uint32_t first, bool repeats) const
    {
        const uint32_t count = min(side.offered, (uint32_t)CUDA_SCREEN_TILE_QUEUE);
        for (uint32_t k = thread; k < count; k += call::servers)
            weigh(side.offers[k], first);
        ptx_named_barrier<3, call::servers>();
        if (call::cuts) {
            if (!repeats) /* a token is listed once */
                list_offers(count, first);
            return;
        }
        for (uint32_t k = thread; k < count; k += call::servers) {
            const screen_offer &offer = side.offers[k];
            const uint32_t row = offer.place & 0xff;
            if (is_beaten(offer.upper, row))
                continue;
            const uint32_t at = atomicAdd(&side.kept, 1);
            if (at < side.kept_most)
                side.list[at] = {offer.upper, first + (offer.place >> 8), row};
            else
                side.again = 1;
        }
    }

    /* Make an offer's ends those of its score. NaN and +inf are for the full pass to tell. */
    __device__ __forceinline__ void weigh(screen_offer &offer, uint32_t first) const
    {
        const int i = offer.place & 0xff;
        if (call::cuts) {
            if (!(offer.upper < INFINITY))
                side.again = 1;
            side.reach(i, offer.lower, 0);
            return;
        }
        const sm90_draw &draw = side.draws[i];
        const float scale = s.call.problem.scale;
        float upper = (offer.upper * scale) * draw.inverse_temperature;
        float lower = (offer.lower * scale) * draw.inverse_temperature;
        if (!(upper < INFINITY))
            side.again = 1;
        if (!draw.greedy) {
            const gumbel_stream stream = {draw.seed, draw.position, draw.sample,
                                          s.call.problem.sampling.domain};
            const float noise = draw_token_noise(stream, first + (offer.place >> 8));
            upper += noise;
            lower += noise;
        }
        offer.upper = upper;
        side.reach(i, lower, first + (offer.place >> 8));
    }

    /* Whether a score that is not above `upper` cannot win. */
    __device__ __forceinline__ bool is_beaten(float upper, uint32_t row) const
    {
        return upper < side.reached(row) || upper < side.thresholds[row];
    }

    /* List the offers of rows that are cut which reach their floors; a row's places are asked for
     * at once. */
    __device__ __forceinline__ void list_offers(uint32_t count, uint32_t first) const
    {
        constexpr int shift = 16; /* of an offer's place among those of its row, from 1 on */
        const uint32_t most = list_most_of_row(s);
        for (uint32_t k = thread; k < count; k += call::servers) {
            screen_offer &offer = side.offers[k];
            const uint32_t row = offer.place & 0xff;
            if (!(offer.upper < side.thresholds[row]))
                offer.place |= (1 + atomicAdd(&side.passed[row], 1u)) << shift;
        }
        ptx_named_barrier<3, call::servers>();
        if (side.draws_row(thread) && side.passed[thread] > 0)
            side.passed[thread] = atomicAdd(listed_of_row(s, thread), side.passed[thread]);
        ptx_named_barrier<3, call::servers>();
        for (uint32_t k = thread; k < count; k += call::servers) {
            const screen_offer &offer = side.offers[k];
            const uint32_t row = offer.place & 0xff, place = offer.place >> shift;
            if (place == 0)
                continue;
            const uint32_t at = side.passed[row] + place - 1;
            if (at < most)
                s.ends[row * s.ends_stride + at] = {offer.upper, offer.lower,
                                                    first + (offer.place >> 8 & 0xff), 0};
            else
                side.again = 1;
        }
    }

    /* Tell the peaks of a tile, where rows are cut, and forget them. */
    __device__ __forceinline__ void tell_peaks(int tile, bool repeats) const
    {
        if (!side.draws_row(thread))
            return;
        give_peak(s, side, thread, tile);
        side.passed[thread] = 0;
        if (!repeats)
            side.best[thread] = (unsigned long long)ordered_bits(-INFINITY) << 32;
    }

    /* Raise row i's threshold to what is reached, and tell the others; whether that is news. */
    __device__ __forceinline__ bool raise(int i) const
    {
        const float safe = draw_threshold(side.reached(i));
        const bool is_news = safe > side.thresholds[i];
        if (is_news) {
            side.thresholds[i] = safe;
            raise_floor(s, side, i);
        }
        return is_news;
    }

    /* Tell, and find the rows that are worth a product of their own: those of which nobody else has
     * told as much. Behind the first tile all CTAs have news of all rows, so that others are waited
     * for and asked; later it is late for a product where a part of the tile's time is over. */
    __device__ __forceinline__ void tell(screen_time time, bool repeats, bool first) const
    {
        bool leads = side.draws_row(thread) && raise(thread) && !repeats;
        if (first && !repeats) {
            sm90_sleep(time.ended, nap_behind(time.took));
            if (leads) {
                const uint64_t floor = load_threshold(floor_of_row(s, thread));
                leads = pack_threshold(side.thresholds[thread]) >= floor % (1ull << THRESHOLD_BITS);
            }
        } else if ((uint32_t)clock() - time.ended > time.took / 2)
            leads = false;
        const uint32_t ballot = __ballot_sync(~0u, leads);
        if (thread % 32 == 0 && thread < 64)
            side.leads[thread / 32] = ballot;
    }

    /* Of rows in which this CTA leads, a few: raise what the best token surely has to what its own
     * product says, less what roundings can make of it. By the narrower interval, others pass over
     * most of what they would keep. */
    __device__ __forceinline__ void sharpen() const
    {
        int count = 0;
        for (int word = 0; word < 2; word++)
            for (uint32_t left = side.leads[word]; left != 0; left &= left - 1)
                if (count++ < kSharpened)
                    sharpen_row(32 * word + __ffs((int)left) - 1);
    }

    /* By all threads that serve. */
    __device__ __forceinline__ void sharpen_row(int i) const
    {
        const gumbel_problem &q = s.call.problem;
        const uint32_t token = (uint32_t)side.best[i];
        float2 sums = multiply_row(i, token); /* of products, and of their sizes */
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) {
            sums.x += __shfl_xor_sync(~0u, sums.x, lanes);
            sums.y += __shfl_xor_sync(~0u, sums.y, lanes);
        }
        if (thread % 32 == 0)
            side.parts[thread / 32] = sums;
        ptx_named_barrier<3, SM90_SERVE_THREADS>(); /* all parts are there */
        if (thread == 0) {
            const sm90_draw &draw = side.draws[i];
            for (int warp = 1; warp < kServeWarps; warp++) {
                sums.x += side.parts[warp].x;
                sums.y += side.parts[warp].y;
            }
            /* The product's own roundings, and those of both sums. */
            const float gamma =
                1.01f * (float)s.gamma + (float)(q.hidden_size / 32 + 16) * 0x1p-22f;
            const float lower = sums.x - fmaf(gamma, sums.y, CUDA_SCREEN_TINY);
            float score = (lower * q.scale) * draw.inverse_temperature;
            if (!draw.greedy)
                score += draw_token_noise(
                    {draw.seed, draw.position, draw.sample, q.sampling.domain}, token);
            side.reach(i, score, token);
            raise(i);
        }
        ptx_named_barrier<3, SM90_SERVE_THREADS>(); /* parts may change */
    }

    /* A thread's part of the product of row i of the batch and a token's weights. */
    __device__ __forceinline__ float2 multiply_row(int i, uint32_t token) const
    {
        const gumbel_problem &q = s.call.problem;
        const uint4 *w = (const uint4 *)weights_of(token);
        const uint4 *h = (const uint4 *)s.hidden_of(i);
        const bool half = q.weight.dtype == GUMBEL_FLOAT16;
        const int vectors = (int)(q.hidden_size / 8);
        float2 sums = {0.0f, 0.0f};
#pragma unroll 1
        for (int from = thread; from < vectors; from += kSharpAhead * SM90_SERVE_THREADS) {
            uint4 a[kSharpAhead], b[kSharpAhead];
#pragma unroll
            for (int k = 0; k < kSharpAhead; k++) {
                const int v = from + k * SM90_SERVE_THREADS;
                a[k] = b[k] = {0, 0, 0, 0};
                if (v < vectors) {
                    a[k] = __ldg(w + v);
                    b[k] = __ldg(h + v);
                }
            }
#pragma unroll
            for (int k = 0; k < kSharpAhead; k++) {
                add_pair(a[k].x, b[k].x, half, sums);
                add_pair(a[k].y, b[k].y, half, sums);
                add_pair(a[k].z, b[k].z, half, sums);
                add_pair(a[k].w, b[k].w, half, sums);
            }
        }
        return sums;
    }

    /* Two products. */
    static __device__ __forceinline__ void add_pair(uint32_t a, uint32_t b, bool half, float2 &sums)
    {
#pragma unroll
        for (int shift = 0; shift < 32; shift += 16) {
            const uint32_t left = a >> shift & 0xffff, right = b >> shift & 0xffff;
            const float x = half ? widen_f16(left) : widen_bf16(left);
            const float y = half ? widen_f16(right) : widen_bf16(right);
            sums.x = fmaf(x, y, sums.x);
            sums.y = fmaf(fabsf(x), fabsf(y), sums.y);
        }
    }

    /* Keep no more than what can still win, by a warp, once the list is half full. */
    __device__ __forceinline__ void drop_beaten() const
    {
        const uint32_t count = min(side.kept, side.kept_most);
        uint32_t left = 0;
        if (2 * count < side.kept_most)
            return;
        __syncwarp();
        for (uint32_t at = 0; at < count; at += 32) {
            const bool is_there = at + thread < count;
            const screen_kept own = side.list[is_there ? at + thread : 0];
            const bool stays = is_there && !is_beaten(own.upper, own.row);
            const uint32_t ballot = __ballot_sync(~0u, stays);
            if (stays)
                side.list[left + __popc(ballot & ((1u << thread) - 1))] = own;
            left += __popc(ballot);
            __syncwarp();
        }
        if (thread == 0)
            side.kept = left;
    }

    __device__ __forceinline__ void mark_tile(int tile, uint32_t ended, uint32_t nap) const
    {
        const bool draws = side.draws_row(thread);
        gumbel_screen_block blocks[kTileBlocks];
        float reaches[kTileBlocks];
        if (draws) {
            draw_block words[kTileBlocks];
            ask_allowed(s, side, thread, first_token_of(tile));
            load_blocks(s, tile, blocks);
            if (!call::cuts)
                words_of_tile(s, side, thread, first_token_of(tile), words);
#pragma unroll
            for (int b = 0; b < kTileBlocks; b++)
                reaches[b] = call::cuts ? 0.0f : draw_reach(side.draws[thread].greedy, words[b].r);
        }
        sm90_sleep(ended, nap);
        if (draws) {
            take_floor(s, side, thread, load_threshold(floor_of_row(s, thread)));
            wait_allowed(s);
            set_marks(s, side, thread, reaches, blocks);
        }
    }

    __device__ __forceinline__ const uint16_t *weights_of(uint32_t token) const
    {
        const gumbel_problem &q = s.call.problem;
        return (const uint16_t *)q.weight.data +
               (int64_t)(token - (uint32_t)q.first_token) * q.weight.stride;
    }

    /* What can win by all that is known goes to the list of the call, and its weights to the
     * second-level cache, where the next launch reads them. */
    __device__ __forceinline__ void hand_over() const
    {
        if (side.draws_row(thread)) {
            raise(thread);
            take_floor(s, side, thread, load_threshold(floor_of_row(s, thread)));
        }
        ptx_named_barrier<3, SM90_SERVE_THREADS>();
        const uint32_t count = min(side.kept, side.kept_most);
        const uint32_t most =
            CUDA_SCREEN_GROUP_CANDIDATES(min(max(s.header->list_most, 1), GUMBEL_SCREEN_LIST_MOST));
        for (uint32_t k = thread; k < count; k += call::servers) {
            const screen_kept own = side.list[k];
            if (is_beaten(own.upper, own.row))
                continue;
            const uint32_t group = own.row / CUDA_SCREEN_GROUP;
            const uint32_t at = atomicAdd(&s.state->listed[group], 1);
            if (at < most) {
                s.entries[group * CUDA_SCREEN_GROUP_CANDIDATES_MAX + at] = {own.upper, own.token,
                                                                            own.row, 0};
                screen_fetch(weights_of(own.token), 2 * (uint32_t)s.call.problem.hidden_size);
            } else
                side.again = 1;
        }
        ptx_named_barrier<3, SM90_SERVE_THREADS>();
        if (thread == 0 && side.again)
            s.state->again = 1;
    }
};

} // namespace

#endif
