/* SPDX-License-Identifier: Apache-2.0
 *
 * The first pass of a draw with a screen, whatever instructions multiply (screen_draw.cu,
 * screen_draw_sm80.cu): its consumers, and the roles of its threads.
 */
#ifndef GUMBEL_CUDA_SCREEN_CONSUME_CUH
#define GUMBEL_CUDA_SCREEN_CONSUME_CUH

#include "cuda/fused/hopper/lanes_sm90.cuh"
#include "cuda/fused/hopper/initial_thresholds_sm90.cuh"
#include "cuda/fused/screen/screen_ptx.cuh"
#include "cuda/fused/screen/screen_serve.cuh"
#include "cuda/fused/screen/screen_stages.cuh"

namespace
{

/* A consumer and its tile. */
template <int n, class call> class screen_consumer
{
    const call &s;
    screen_shared<n> &shared;
    const int thread, lane, own; /* index of the thread's first token in each half of a tile */
    const int tokens;            /* valid tokens of the tile */

  public:
    float2 steps[2]; /* of the thread's two tokens in each half */

    __device__ __forceinline__ screen_consumer(const call &params, screen_shared<n> &memory,
                                               int index, int tile)
        : s(params), shared(memory), thread(index % 128), lane(index % 32),
          own((int)sm90_place(index % 128)),
          tokens((int)(params.call.problem.end_token - params.call.problem.first_token) -
                 tile * CUDA_SCREEN_TILE)
    {
#pragma unroll
        for (int h = 0; h < 2; h++)
            steps[h] = __ldg((const float2 *)&s.steps[tile * CUDA_SCREEN_TILE + 64 * h + own]);
    }

    /* Appends the tokens that pass their filters to the list of candidates. */
    __device__ __forceinline__ void draw_sums(const screen_sums<n> &sum) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < n / 8; j++) {
                const int row = 4 * j + lane % 4;
                const screen_filter filter = shared.filters[h][row];
                const float unit = shared.units[row];
                const float t0 = middle_of(sum[h] + 4 * j, unit),
                            t1 = middle_of(sum[h] + 4 * j + 2, unit);
                const float e0 = fmaf(steps[h].x, t0 + filter.upper, CUDA_SCREEN_TINY);
                const float e1 = fmaf(steps[h].y, t1 + filter.upper, CUDA_SCREEN_TINY);
                bool p0 = !(e0 < filter.min_upper), p1 = !(e1 < filter.min_upper);
                if (__any_sync(~0u, p0 || p1)) {
                    const uint32_t allowed =
                        call::masked ? shared.allowed[h][row][own / 32] >> own % 32 : 3;
                    p0 =
                        p0 && filter.min_upper < INFINITY && 64 * h + own < tokens && (allowed & 1);
                    p1 = p1 && filter.min_upper < INFINITY && 64 * h + own + 1 < tokens &&
                         (allowed & 2);
                    const float width = shared.lower_widths[h][row];
                    append_pair(p0, p1, {lower_of(steps[h].x, t0, width), e0},
                                {lower_of(steps[h].y, t1, width), e1}, row | (64 * h + own) << 8);
                }
            }
    }

    /* Before the draw from the CTA's first tile: sets thresholds, from the tokens with the most
     * noise and from the shared thresholds; then sets filters. */
    __device__ __forceinline__ void set_thresholds(const screen_sums<n> &sum, int tile) const
    {
        gumbel_screen_block blocks[kTileBlocks];
        load_blocks(s, tile, blocks);
        store_noisiest(sum, blocks);
        ptx_named_barrier<1, 128>();
        const bool draws = shared.draws_row(thread);
        if (draws) {
            shared.thresholds[thread] = initial_threshold();
            if ((blockIdx.x + thread) % SM90_EARLY_PUBLISHERS == 0)
                publish_threshold(s, shared, thread, 0);
        }
        if (thread < (shared.rows + 31) / 32 * 32)
            exchange_thresholds(draws);
        if (draws)
            set_first_filters(blocks);
        ptx_named_barrier<1, 128>();
    }

    /* set_thresholds() by coarse bounds: sets filters that pass the tokens whose estimated score
     * may exceed those of the tokens with the most noise. */
    __device__ __forceinline__ void set_estimates(const screen_sums<n> &sum, int tile) const
    {
        gumbel_screen_block blocks[kTileBlocks];
        load_blocks(s, tile, blocks);
        store_noisiest(sum, blocks);
        ptx_named_barrier<1, 128>();
        if (shared.draws_row(thread)) {
            shared.thresholds[thread] = initial_threshold();
            set_first_filters(blocks);
        }
        ptx_named_barrier<1, 128>();
    }

    /* set_thresholds() for truncated rows: publishes the maxima of the first tile, and sets filters
     * as soon as there are shared thresholds. */
    __device__ __forceinline__ void set_thresholds_truncated(const screen_sums<n> &sum,
                                                             int tile) const
    {
        gumbel_screen_block blocks[kTileBlocks];
        load_blocks(s, tile, blocks);
#pragma unroll
        for (int j = 0; j < n / 8; j++) {
            const int row = 4 * j + lane % 4;
            float largest = -INFINITY;
            if (shared.draws_row(row))
#pragma unroll
                for (int h = 0; h < 2; h++)
                    largest = fmaxf(largest, max_of_pair(sum[h] + 4 * j, h, row, blocks[h]));
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
            if (lane < 4)
                shared.raise_best(row, largest, 0);
        }
        ptx_named_barrier<1, 128>();
        const bool draws = shared.draws_row(thread);
        if (draws)
            store_tile_max(s, shared, thread, tile);
        if (thread < (shared.rows + 31) / 32 * 32)
            wait_for_thresholds(s, shared, thread, draws);
        if (draws) {
            const float noise_bounds[kTileBlocks] = {};
            if (shared.penalties[thread].slot >=
                0) { /* restores what clear_seen_tokens() cleared */
                copy_allowed(s, shared, thread,
                             (uint32_t)s.call.problem.first_token + CUDA_SCREEN_TILE * tile);
                wait_allowed(s);
            }
            set_filters(s, shared, thread, noise_bounds, blocks);
        }
        ptx_named_barrier<1, 128>();
    }

    /* Waits for the consumer's other threads. */
    __device__ __forceinline__ void sync() const
    {
        if (threadIdx.x < 128)
            ptx_named_barrier<1, 128>();
        else
            ptx_named_barrier<2, 128>();
    }

  private:
    /* u t of a token, from the sums of the two planes. */
    static __device__ __forceinline__ float middle_of(const int32_t *sums, float unit)
    {
        return unit * fmaf(256.0f, (float)sums[0], (float)sums[1]);
    }

    /* A lower bound of a logit; width: lower_width(). */
    static __device__ __forceinline__ float lower_of(float step, float middle, float width)
    {
        return fmaf(step, middle + width, -CUDA_SCREEN_TINY);
    }

    /* A lower bound of the larger logit of this thread's two tokens in half h of the tile, for row
     * `row`; -inf if neither token is valid and allowed. */
    __device__ __forceinline__ float max_of_pair(const int32_t *sums, int h, int row,
                                                 const gumbel_screen_block &block) const
    {
        const float width = lower_width(s, shared.hidden_errors[row], block);
        const uint32_t allowed = shared.allowed[h][row][own / 32] >> own % 32;
        const float unit = shared.units[row];
        const int place = 64 * h + own;
        float largest = -INFINITY;
        if (place < tokens && (allowed & 1))
            largest = lower_of(steps[h].x, middle_of(sums, unit), width);
        if (place + 1 < tokens && (allowed & 2))
            largest = fmaxf(largest, lower_of(steps[h].y, middle_of(sums + 2, unit), width));
        return largest;
    }

    __device__ __forceinline__ void append_pair(bool p0, bool p1, float2 first, float2 second,
                                                uint32_t place) const
    {
        if (!(p0 || p1))
            return;
        uint32_t at = atomicAdd(&shared.candidate_count, (uint32_t)p0 + (uint32_t)p1);
        if (p0 && at < CUDA_SCREEN_TILE_QUEUE)
            shared.candidates[at] = {first.x, first.y, place};
        at += p0;
        if (p1 && at < CUDA_SCREEN_TILE_QUEUE)
            shared.candidates[at] = {second.x, second.y, place + (1 << 8)};
    }

    /* Sets the filters of this thread's row for the CTA's first tile. */
    __device__ __forceinline__ void
    set_first_filters(const gumbel_screen_block (&blocks)[kTileBlocks]) const
    {
        float noise_bounds[kTileBlocks];
#pragma unroll
        for (int b = 0; b < kTileBlocks; b++)
            noise_bounds[b] =
                draw_reach(shared.draws[thread].greedy, word_below(shared.first_words[b][thread]));
        set_filters(s, shared, thread, noise_bounds, blocks);
    }

    /* Stores the lower bound of each block's token with the most noise, or by coarse bounds the
     * estimate, if this thread holds it. */
    __device__ __forceinline__ void
    store_noisiest(const screen_sums<n> &sum,
                   const gumbel_screen_block (&blocks)[kTileBlocks]) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < n / 8; j++) {
                const int row = 4 * j + lane % 4;
                const int other = (int)((shared.first_words[h][row] - own) % GUMBEL_BLOCK);
                if (!shared.draws_row(row) || other > 1 || 64 * h + own + other >= tokens ||
                    (call::masked && !(shared.allowed[h][row][own / 32] >> (own % 32 + other) & 1)))
                    continue;
                const gumbel_screen_hidden_error &hidden_error = shared.hidden_errors[row];
                const float width =
                    call::coarse ? -hidden_error.shift : lower_width(s, hidden_error, blocks[h]);
                const float middle = other ? middle_of(sum[h] + 4 * j + 2, shared.units[row])
                                           : middle_of(sum[h] + 4 * j, shared.units[row]);
                shared.noisiest_bounds[h][row] =
                    lower_of(other ? steps[h].y : steps[h].x, middle, width);
            }
    }

    /* A lower bound on the winning score of this thread's row, from store_noisiest(); -inf if there
     * is none. */
    __device__ __forceinline__ float initial_threshold() const
    {
        const sm90_draw &draw = shared.draws[thread];
        float threshold = -INFINITY;
#pragma unroll
        for (int b = 0; b < kTileBlocks; b++) {
            const float z = (shared.noisiest_bounds[b][thread] * s.call.problem.scale) *
                            draw.inverse_temperature;
            const float bound =
                draw_score_bound_of_word(draw.greedy, z, word_above(shared.first_words[b][thread]));
            if (fabsf(bound) < INFINITY)
                threshold = fmaxf(threshold, bound);
        }
        return threshold;
    }

    /* Reads and publishes thresholds until this CTA leads in few of the warp's rows
     * (initial_thresholds_sm90.cuh). */
    __device__ __forceinline__ void exchange_thresholds(bool draws) const
    {
        const uint32_t few = SM90_EXCHANGE_LEADS + 64 / gridDim.x;
#pragma unroll 1
        for (int polls = 1; polls <= SM90_EXCHANGE_POLLS; polls++) {
            bool is_new = polls == 1, leads = false;
            __nanosleep(SM90_EXCHANGE_BACKOFF);
            if (draws) {
                const uint64_t word = load_threshold(shared_threshold(s, thread));
                is_new |= raise_to_shared(s, shared, thread, word);
                leads = publish_threshold(s, shared, thread, word);
            }
            const uint32_t count = __popc(__ballot_sync(~0u, leads));
            if (count <= few || (count <= 4 * few && !__any_sync(~0u, is_new)))
                return;
        }
    }
};

/* Runs one consumer over its tiles; the two consumers alternate. `ring`: how stages are copied and
 * multiplied. */
template <int n, class ring, class call>
__device__ void consume_screen_tiles(const call &s, unsigned char *bytes)
{
    const screen_memory<n> memory(s, bytes);
    screen_shared<n> &shared = memory.shared;
    screen_sums<n> sum;
    stage_ring at(s.call.stages);
    const int own = threadIdx.x / 128, stride = kScreenConsumers * (int)gridDim.x;
    uint32_t served = 0;
    int turn = 0;
    at.skip_stages(own * s.depths);
    for (int tile = blockIdx.x + own * gridDim.x; tile < s.call.tiles; tile += stride, turn++) {
        const screen_consumer<n, call> consumer(s, shared, threadIdx.x, tile);
        if (own != 0 || turn != 0)
            ptx_barrier_wait(&shared.multiplied[1 - own], (turn & 1) ^ (own == 0));
        const uint32_t began = clock();
#pragma unroll
        for (int i = 0; i < n; i++)
            sum[i / (n / 2)][i % (n / 2)] = 0;
        ring::template multiply_tile<n>(s, sum, memory, at);
        at.skip_stages(s.depths);
        if (threadIdx.x % 128 == 0) {
            const uint32_t ended = clock();
            shared.times[own] = {ended, ended - began};
        }
        bool repeats = true;
#pragma unroll 1
        for (int tries = 0; repeats; tries++) {
            ptx_barrier_wait(&shared.served[own], served++ & 1);
            if (served == 1 && own == 0) {
                if constexpr (call::truncates)
                    consumer.set_thresholds_truncated(sum, tile);
                else if constexpr (call::coarse)
                    consumer.set_estimates(sum, tile);
                else
                    consumer.set_thresholds(sum, tile);
            }
            consumer.draw_sums(sum);
            consumer.sync();
            repeats = shared.must_repeat(s, tries);
            ptx_barrier_arrive(&shared.drawn[own]);
        }
    }
}

/* Prefetches the first stages to L2 before the previous launch has ended. L2 is coherent, so writes
 * of that launch are seen. */
template <class call> __device__ __forceinline__ void fetch_stages(const call &s)
{
    constexpr int bytes = CUDA_SCREEN_TILE_BYTES(call::nibbles);
    const int tile = blockIdx.x;
    const int stages = (call::coarse ? 2 : 1) * s.call.stages;
    for (int k = 0; k < min(stages, s.depths) && tile < s.call.tiles; k++) {
        const int64_t at = ((int64_t)tile * s.depths + k) * bytes;
        screen_fetch(s.copy + at, bytes);
        if (call::nibbles && !call::coarse)
            screen_fetch(s.low_nibbles + at, bytes);
    }
}

template <int n, class ring, class call>
__device__ __forceinline__ void run_screen_draw(const call &s)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const screen_memory<n> memory(s, shared_memory);
    if (threadIdx.x == 0)
        memory.shared.start_barriers(s.call.stages, call::servers, ring::copy_arrivals,
                                     ring::free_arrivals);
    if (threadIdx.x == 32)
        fetch_stages(s);
    ptx_wait_for_launch();
    memory.shared.clear(s);
    __syncthreads();
    if (memory.shared.skips_screen) {
        if (blockIdx.x == 0 && threadIdx.x == 0)
            s.state->again = 1;
        return;
    }
    if (threadIdx.x < SM90_DRAW_THREADS) {
        ring::give_registers_to_consumers(true);
        consume_screen_tiles<n, ring>(s, shared_memory);
    } else {
        ring::give_registers_to_consumers(false);
        if (threadIdx.x < SM90_DRAW_THREADS + call::servers)
            screen_server<n, call>(s, memory.shared).serve_consumers();
        else if (threadIdx.x < SM90_DRAW_THREADS + SM90_SERVE_THREADS)
            screen_raise_thresholds(s, memory.shared);
        else if (ring::is_producer(threadIdx.x)) {
            ring::copy_stages(s, memory);
            ptx_allow_launch();
        }
    }
}

} // namespace

#endif
