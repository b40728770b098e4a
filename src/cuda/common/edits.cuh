/* SPDX-License-Identifier: Apache-2.0
 *
 * Edits of a row's tokens that are looked up where a token is (edits.h): a mask, and what a
 * history has counted.
 */
#ifndef GUMBEL_CUDA_EDITS_CUH
#define GUMBEL_CUDA_EDITS_CUH

#include <float.h>

#include "core/row.h"

namespace
{

__device__ __forceinline__ bool bit_of(const uint32_t *words, int64_t i)
{
    return words[i >> 5] >> (i & 31) & 1;
}

/* Four bits from one that is divisible by 4 on. */
__device__ __forceinline__ uint32_t nibble_of(const uint32_t *words, int64_t i)
{
    return words[i >> 5] >> (i & 31) & 15;
}

__device__ __forceinline__ bool is_masked(const gumbel_problem &q, int64_t b, int64_t token)
{
    return (q.request & GUMBEL_REQUEST_MASK) &&
           !bit_of((const uint32_t *)gumbel_problem_mask(&q, b), token);
}

/* What penalises a row. */
struct row_penalties {
    gumbel_penalties of;
    bool act;
};

__device__ __forceinline__ row_penalties penalties_of(const gumbel_problem &q, int64_t b)
{
    row_penalties r = {{1.0f, 0.0f, 0.0f}, false};
    if (q.request & GUMBEL_REQUEST_PENALTIES)
        r.of = gumbel_problem_penalties(&q, b);
    r.act = (q.request & GUMBEL_REQUEST_PENALTIES) && gumbel_penalties_act(&r.of);
    return r;
}

/* Whether they raise no token. */
__device__ __forceinline__ bool penalties_lower(const gumbel_penalties &r)
{
    return r.repetition >= 1.0f && r.repetition <= FLT_MAX && r.frequency >= 0.0f &&
           r.frequency < 0x1p100f && r.presence >= 0.0f && r.presence < INFINITY;
}

/* y of a token after the penalties of what a history counted, and `listed` more of the output. */
__device__ __forceinline__ float penalise_by_history(const gumbel_problem &q,
                                                     const gumbel_penalties &penalties, int64_t b,
                                                     int64_t token, uint32_t listed, float y)
{
    const gumbel_history &h = q.history;
    if (token >= h.vocab_size)
        return y;
    int64_t slot = gumbel_problem_slot(&q, b), words = gumbel_words_of(h.vocab_size) * slot;
    bool output = bit_of(h.output + words, token);
    if (!output && listed == 0 && !bit_of(h.prompt + words, token))
        return y;
    uint32_t count = listed + (output ? gumbel_history_count(&h, slot, token) : 0);
    return gumbel_penalise(y, &penalties, min(count, (uint32_t)GUMBEL_COUNT_MOST));
}

/* Which of four tokens of row b the history has seen, from one divisible by 4 on, as bits. */
__device__ __forceinline__ uint32_t seen_of_four(const gumbel_problem &q, int64_t b, int64_t token)
{
    const gumbel_history &h = q.history;
    const int64_t words = gumbel_words_of(h.vocab_size) * gumbel_problem_slot(&q, b);
    return token < h.vocab_size
               ? nibble_of(h.prompt + words, token) | nibble_of(h.output + words, token)
               : 0;
}

/* Edit the y of four tokens of row b, from one divisible by 4 on, of which those of
 * [q.first_token, end) count. */
__device__ __forceinline__ void edit_four(const gumbel_problem &q, const row_penalties &penalties,
                                          int64_t b, int64_t token, int64_t end, float *y)
{
    uint32_t allowed = 15, seen = 0;
    if (token + 3 < q.first_token || token >= end)
        return;
    if (q.request & GUMBEL_REQUEST_MASK)
        allowed = nibble_of((const uint32_t *)gumbel_problem_mask(&q, b), token);
    if (penalties.act)
        seen = seen_of_four(q, b, token);
    if (allowed == 15 && seen == 0)
        return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool counts = token + i >= q.first_token && token + i < end;
        if (!(allowed >> i & 1))
            y[i] = -INFINITY;
        else if ((seen >> i & 1) && counts)
            y[i] = penalise_by_history(q, penalties.of, b, token + i, 0, y[i]);
    }
}

} // namespace

#endif
