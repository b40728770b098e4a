/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   what penalties count: started from lists of tokens, and more tokens a step.
 * COST   start: 2.25 bytes a token of the vocabulary written, 4.25 where counts have 32 bits, and
 *        the lists read once for every 16384 of them. update: some 20 bytes a row, nothing beside
 *        the launch.
 * MAP    start: a CTA takes a row and a piece of the vocabulary, of which it clears all and counts
 *        what the lists have. update: a thread a row.
 * SYNC   one __syncthreads() between clearing and counting; no CTA touches another's piece, since
 *        pieces are whole words. Equal ids of a list meet in atomics.
 */
#include "core/row.h"
#include "cuda/common/cuda_request.h"
#include "cuda/policy/cuda_policy.h"

namespace
{

static_assert(CUDA_HISTORY_SLICE % 32 == 0, "a piece is whole words of the bit masks");

/* Where row b's history is; -1 where it has none. */
__device__ int64_t slot_of(const cuda_history_params &p, int64_t b)
{
    if (!p.slots.of_row)
        return b;
    int64_t slot = p.slots.of_row[b];
    return slot >= 0 && slot < p.slots.count ? slot : -1;
}

/* Exchange a count for one more of it, unless another thread was faster: what is there then. */
__device__ unsigned short exchange(uint16_t *word, uint32_t seen, uint32_t next)
{
    return atomicCAS((unsigned short *)word, (unsigned short)seen, (unsigned short)next);
}
__device__ uint32_t exchange(int32_t *word, uint32_t seen, uint32_t next)
{
    return (uint32_t)atomicCAS(word, (int32_t)seen, (int32_t)next);
}

/* One more of a token, up to GUMBEL_COUNT_MOST; what is negative counts as 0. */
template <class T> __device__ void count_in(T *word)
{
    uint32_t seen = (uint32_t)(int32_t) * (volatile T *)word, was;
    for (;; seen = was) {
        uint32_t count = (int32_t)seen < 0 ? 0 : seen;
        if (count >= GUMBEL_COUNT_MOST)
            return;
        was = exchange(word, seen, count + 1);
        if (was == seen)
            return;
    }
}

__device__ void count(const gumbel_history &h, int64_t slot, int64_t token)
{
    int64_t at = slot * h.vocab_size + token;
    if (h.count_bits == 16)
        count_in((uint16_t *)h.counts + at);
    else
        count_in((int32_t *)h.counts + at);
}

__device__ void clear_count(const gumbel_history &h, int64_t slot, int64_t token)
{
    int64_t at = slot * h.vocab_size + token;
    if (h.count_bits == 16)
        ((uint16_t *)h.counts)[at] = 0;
    else
        ((int32_t *)h.counts)[at] = 0;
}

/* f(token) for those ids of row b's list that lie in [begin, end). */
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
    uint32_t *prompt = h.prompt + slot * gumbel_words_of(h.vocab_size);
    uint32_t *output = h.output + slot * gumbel_words_of(h.vocab_size);
    for (int64_t w = begin / 32 + threadIdx.x; w < (end + 31) / 32; w += CUDA_THREADS)
        prompt[w] = output[w] = 0;
    for (int64_t token = begin + threadIdx.x; token < end; token += CUDA_THREADS)
        clear_count(h, slot, token);
    __syncthreads();
    each_listed(p.prompts, b, begin, end,
                [&](int64_t token) { atomicOr(&prompt[token >> 5], 1u << (token & 31)); });
    each_listed(p.outputs, b, begin, end, [&](int64_t token) {
        atomicOr(&output[token >> 5], 1u << (token & 31));
        count(h, slot, token);
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
        h.output[slot * gumbel_words_of(h.vocab_size) + (token >> 5)] |= 1u << (token & 31);
        count(h, slot, token);
    }
}
