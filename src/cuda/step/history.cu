/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the history that penalties read: start builds it from lists of tokens, update adds the
 *        tokens of a step. Also rings of recent tokens, with a history of their last tokens.
 * COST   start: writes 2.25 bytes a token of the vocabulary, or 4.25 with counts of 32 bits, and
 *        reads the lists once per 16384 tokens. update: about 20 bytes a row, negligible beside the
 *        launch.
 * MAP    start: a CTA clears a tile of a row's vocabulary and counts the list entries in it.
 *        update: a thread a row.
 * SYNC   all threads of a CTA wait until its tile is cleared before they count. A tile is whole
 *        mask words, so no CTA writes words of another's tile, and none waits for another. Threads
 *        with equal ids count by atomics.
 */
#include "core/recent_row.h"
#include "cuda/common/cuda_recent_params.h"
#include "cuda/common/cuda_truncated_params.h"
#include "cuda/policy/cuda_policy.h"

namespace
{

static_assert(CUDA_HISTORY_TILE % 32 == 0, "a tile is whole words of the bit masks");

/* Compare-and-swap of a count; returns the old value. */
__device__ unsigned short compare_exchange(uint16_t *word, uint32_t seen, uint32_t next)
{
    return atomicCAS((unsigned short *)word, (unsigned short)seen, (unsigned short)next);
}
__device__ uint32_t compare_exchange(int32_t *word, uint32_t seen, uint32_t next)
{
    return (uint32_t)atomicCAS(word, (int32_t)seen, (int32_t)next);
}

/* Increments the count of a token, up to GUMBEL_COUNT_MAX; negative counts are 0. */
template <class T> __device__ void increment_count(T *word)
{
    uint32_t seen = (uint32_t)(int32_t) * (volatile T *)word, found;
    for (;; seen = found) {
        uint32_t count = (int32_t)seen < 0 ? 0 : seen;
        if (count >= GUMBEL_COUNT_MAX)
            return;
        found = compare_exchange(word, seen, count + 1);
        if (found == seen)
            return;
    }
}

__device__ void count_token(const gumbel_history &h, int64_t slot, int64_t token)
{
    int64_t at = slot * h.vocab_size + token;
    if (h.count_bits == 16)
        increment_count((uint16_t *)h.counts + at);
    else
        increment_count((int32_t *)h.counts + at);
}

__device__ void clear_count(const gumbel_history &h, int64_t slot, int64_t token)
{
    int64_t at = slot * h.vocab_size + token;
    if (h.count_bits == 16)
        ((uint16_t *)h.counts)[at] = 0;
    else
        ((int32_t *)h.counts)[at] = 0;
}

/* Clears tokens [begin, end) of a slot's history, by all threads of the CTA. */
__device__ void clear_tile(const gumbel_history &h, int64_t slot, int64_t begin, int64_t end)
{
    const int64_t row = slot * gumbel_mask_words_of(h.vocab_size);
    for (int64_t w = begin / 32 + threadIdx.x; w < (end + 31) / 32; w += CUDA_THREADS)
        h.prompt[row + w] = h.output[row + w] = 0;
    for (int64_t token = begin + threadIdx.x; token < end; token += CUDA_THREADS)
        clear_count(h, slot, token);
    __syncthreads();
}

__device__ int64_t count_listed(const gumbel_token_lists &lists, int64_t b)
{
    return lists.offsets ? max(lists.offsets[b + 1] - lists.offsets[b], (int64_t)0) : 0;
}

/* Calls f(token) for the ids of row b's list in [begin, end). */
template <class F>
__device__ void each_listed(const gumbel_token_lists &lists, int64_t b, int64_t begin, int64_t end,
                            F f)
{
    if (!lists.offsets)
        return;
    for (int64_t i = lists.offsets[b] + threadIdx.x; i < lists.offsets[b + 1]; i += CUDA_THREADS) {
        int64_t token = lists.ids[i];
        if (token >= begin && token < end)
            f(token);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_start_history(const __grid_constant__ cuda_history_params p)
{
    const gumbel_history &h = p.history;
    const int64_t b = blockIdx.x / p.tiles, begin = blockIdx.x % p.tiles * CUDA_HISTORY_TILE;
    const int64_t end = min(begin + CUDA_HISTORY_TILE, h.vocab_size),
                  slot = gumbel_slot_of_row(&p.slots, b);
    if (slot < 0)
        return;
    uint32_t *prompt = h.prompt + slot * gumbel_mask_words_of(h.vocab_size);
    uint32_t *output = h.output + slot * gumbel_mask_words_of(h.vocab_size);
    clear_tile(h, slot, begin, end);
    each_listed(p.prompts, b, begin, end,
                [&](int64_t token) { atomicOr(&prompt[token >> 5], 1u << (token & 31)); });
    each_listed(p.outputs, b, begin, end, [&](int64_t token) {
        atomicOr(&output[token >> 5], 1u << (token & 31));
        count_token(h, slot, token);
    });
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_update_history(const __grid_constant__ cuda_history_params p)
{
    const gumbel_history &h = p.history;
    const int64_t b = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x;
    const int64_t slot = b < p.batch ? gumbel_slot_of_row(&p.slots, b) : -1;
    if (slot < 0)
        return;
    const int64_t more = p.counts ? min((int64_t)p.counts[b], p.token_stride) : 1;
    for (int64_t i = 0; i < more; i++) {
        const int64_t token = p.tokens[b * p.token_stride + i];
        if (token < 0 || token >= h.vocab_size)
            continue;
        h.output[slot * gumbel_mask_words_of(h.vocab_size) + (token >> 5)] |= 1u << (token & 31);
        count_token(h, slot, token);
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_start_recent(const __grid_constant__ cuda_recent_params p)
{
    const gumbel_recent_call &c = p.call;
    const gumbel_history &h = c.history;
    const int64_t b = blockIdx.x / p.tiles, begin = blockIdx.x % p.tiles * CUDA_HISTORY_TILE;
    const int64_t slot = gumbel_slot_of_row(&c.slots, b), capacity = c.recent.capacity;
    if (slot < 0)
        return;
    const int64_t prompt = count_listed(c.prompts, b), count = prompt + count_listed(c.outputs, b);
    auto token_at = [&](int64_t i) {
        return i < prompt ? c.prompts.ids[c.prompts.offsets[b] + i]
                          : c.outputs.ids[c.outputs.offsets[b] + i - prompt];
    };
    if (begin == 0) {
        for (int64_t i = max(count - capacity, (int64_t)0) + threadIdx.x; i < count;
             i += CUDA_THREADS)
            c.recent.tokens[slot * capacity + i % capacity] = token_at(i);
        if (threadIdx.x == 0)
            c.recent.count[slot] = (uint64_t)count;
    }
    if (!h.prompt)
        return;
    const int64_t end = min(begin + CUDA_HISTORY_TILE, h.vocab_size);
    const int64_t window = gumbel_window_of_slot(&c.recent, slot);
    uint32_t *output = h.output + slot * gumbel_mask_words_of(h.vocab_size);
    clear_tile(h, slot, begin, end);
    for (int64_t i = max(count - window, (int64_t)0) + threadIdx.x; i < count; i += CUDA_THREADS) {
        const int64_t token = token_at(i);
        if (token >= begin && token < end) {
            atomicOr(&output[token >> 5], 1u << (token & 31));
            count_token(h, slot, token);
        }
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_append_recent(const __grid_constant__ cuda_recent_params p)
{
    const gumbel_recent_call &c = p.call;
    const int64_t b = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x;
    const int64_t slot = b < c.batch ? gumbel_slot_of_row(&c.slots, b) : -1;
    if (slot < 0)
        return;
    const int64_t more = c.counts ? min((int64_t)c.counts[b], c.token_stride) : 1;
    for (int64_t i = 0; i < more; i++)
        gumbel_recent_push(&c, slot, c.tokens[b * c.token_stride + i]);
}
