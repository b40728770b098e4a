/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the history that penalties read: start builds it from lists of tokens, update adds the
 *        tokens of a step.
 * COST   start: writes 2.25 bytes a token of the vocabulary, or 4.25 with counts of 32 bits, and
 *        reads the lists once per 16384 tokens. update: about 20 bytes a row, negligible beside the
 *        launch.
 * MAP    start: a CTA clears a slice of a row's vocabulary and counts the list entries in it.
 *        update: a thread a row.
 * SYNC   one __syncthreads() between clearing and counting. Slices are whole mask words, so no CTA
 *        touches another's slice. Equal ids of a list use atomics.
 */
#include "core/row.h"
#include "cuda/common/cuda_request.h"
#include "cuda/policy/cuda_policy.h"

namespace
{

static_assert(CUDA_HISTORY_SLICE % 32 == 0, "a slice is whole words of the bit masks");

/* The slot of row b's history; -1 if it has none. */
__device__ int64_t slot_of(const cuda_history_params &p, int64_t b)
{
    if (!p.slots.of_row)
        return b;
    int64_t slot = p.slots.of_row[b];
    return slot >= 0 && slot < p.slots.count ? slot : -1;
}

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
    const int64_t b = blockIdx.x / p.slices, begin = blockIdx.x % p.slices * CUDA_HISTORY_SLICE;
    const int64_t end = min(begin + CUDA_HISTORY_SLICE, h.vocab_size), slot = slot_of(p, b);
    if (slot < 0)
        return;
    uint32_t *prompt = h.prompt + slot * gumbel_mask_words_of(h.vocab_size);
    uint32_t *output = h.output + slot * gumbel_mask_words_of(h.vocab_size);
    for (int64_t w = begin / 32 + threadIdx.x; w < (end + 31) / 32; w += CUDA_THREADS)
        prompt[w] = output[w] = 0;
    for (int64_t token = begin + threadIdx.x; token < end; token += CUDA_THREADS)
        clear_count(h, slot, token);
    __syncthreads();
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
    const int64_t slot = b < p.batch ? slot_of(p, b) : -1;
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
