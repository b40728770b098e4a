/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   what penalties count: started from lists of tokens, and one token more a step.
 * COST   start: 2.25 bytes a token of the vocabulary written, and the lists read once for every
 *        16384 of them. update: 14 bytes a row, nothing beside the launch.
 * MAP    start: a CTA takes a row and a piece of the vocabulary, of which it clears all and counts
 *        what the lists have. update: a thread a row.
 * SYNC   one __syncthreads() between clearing and counting; no CTA touches another's piece, since
 *        pieces are whole words. Equal ids of a list meet in atomics.
 */
#include "cuda/policy/cuda_policy.h"
#include "cuda/common/cuda_request.h"

namespace
{

static_assert(CUDA_HISTORY_PIECE % 32 == 0, "a piece is whole words of the bit masks");

/* One more of a token, up to 65535. */
__device__ void count(uint16_t *word)
{
    unsigned short seen = *(volatile uint16_t *)word, was;
    while (seen != UINT16_MAX &&
           (was = atomicCAS((unsigned short *)word, seen, (unsigned short)(seen + 1))) != seen)
        seen = was;
}

/* Set the bits of those tokens of row b's list that lie in [begin, end), and count them too unless
 * `counts` is NULL. */
__device__ void add_list(const gumbel_token_lists &lists, int64_t b, int64_t begin, int64_t end,
                         uint32_t *bits, uint16_t *counts)
{
    if (!lists.offsets)
        return;
    for (int64_t i = lists.offsets[b] + threadIdx.x; i < lists.offsets[b + 1]; i += CUDA_THREADS) {
        int64_t token = lists.ids[i];
        if (token < begin || token >= end)
            continue;
        atomicOr(&bits[token >> 5], 1u << (token & 31));
        if (counts)
            count(&counts[token]);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_start_history(const __grid_constant__ cuda_history_params p)
{
    const gumbel_history &h = p.history;
    int64_t b = blockIdx.x / p.pieces, begin = blockIdx.x % p.pieces * CUDA_HISTORY_PIECE;
    int64_t end =
        begin + CUDA_HISTORY_PIECE < h.vocab_size ? begin + CUDA_HISTORY_PIECE : h.vocab_size;
    int64_t words = (h.vocab_size + 31) / 32;
    uint32_t *prompt = h.prompt + b * words, *output = h.output + b * words;
    uint16_t *counts = h.counts + b * h.vocab_size;
    for (int64_t w = begin / 32 + threadIdx.x; w < (end + 31) / 32; w += CUDA_THREADS)
        prompt[w] = output[w] = 0;
    for (int64_t t = begin + threadIdx.x; t < end; t += CUDA_THREADS)
        counts[t] = 0;
    __syncthreads();
    add_list(p.prompts, b, begin, end, prompt, nullptr);
    add_list(p.outputs, b, begin, end, output, counts);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_update_history(const __grid_constant__ cuda_history_params p)
{
    const gumbel_history &h = p.history;
    int64_t b = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x;
    if (b >= p.batch)
        return;
    int64_t token = p.tokens[b * p.token_stride];
    if (token < 0 || token >= h.vocab_size)
        return;
    uint16_t *counted = &h.counts[b * h.vocab_size + token];
    h.output[b * ((h.vocab_size + 31) / 32) + (token >> 5)] |= 1u << (token & 31);
    if (*counted != UINT16_MAX)
        ++*counted;
}
