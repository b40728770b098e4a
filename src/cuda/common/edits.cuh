/* SPDX-License-Identifier: Apache-2.0
 *
 * Edits of a row's logits, token by token (maths/edits.h): a mask, and penalties by the counts of
 * a history.
 */
#ifndef GUMBEL_CUDA_EDITS_CUH
#define GUMBEL_CUDA_EDITS_CUH

#include <float.h>

#include "core/row.h"

namespace
{

__device__ __forceinline__ bool read_bit(const uint32_t *words, int64_t i)
{
    return words[i >> 5] >> (i & 31) & 1;
}

/* Four bits from bit i, a multiple of 4. */
__device__ __forceinline__ uint32_t read_nibble(const uint32_t *words, int64_t i)
{
    return words[i >> 5] >> (i & 31) & 15;
}

/* The edits of a row and their addresses; loaded once a row, because the slot is in memory. */
struct row_edits {
    gumbel_penalties penalties;
    bool act;                        /* the penalties change some logit of the history */
    const uint32_t *mask;            /* nullptr: none */
    const uint32_t *prompt, *output; /* of a history; nullptr: none */
    int64_t slot;                    /* of the history */
};

__device__ __forceinline__ row_edits load_row_edits(const gumbel_problem &q, int64_t b)
{
    const gumbel_history &h = q.history;
    row_edits e = {{1.0f, 0.0f, 0.0f}, false, nullptr, nullptr, nullptr, 0};
    if (q.features & GUMBEL_FEATURE_MASK)
        e.mask = (const uint32_t *)gumbel_problem_mask(&q, b);
    if (!(q.features & GUMBEL_FEATURE_PENALTIES))
        return e;
    e.penalties = gumbel_problem_penalties(&q, b);
    e.act = gumbel_penalties_are_active(&e.penalties);
    e.slot = gumbel_problem_slot(&q, b);
    if (h.prompt) {
        e.prompt = h.prompt + e.slot * gumbel_mask_words_of(h.vocab_size);
        e.output = h.output + e.slot * gumbel_mask_words_of(h.vocab_size);
    }
    return e;
}

__device__ __forceinline__ bool is_masked(const row_edits &e, int64_t token)
{
    return e.mask && !read_bit(e.mask, token);
}

/* Whether no penalty raises a logit. */
__device__ __forceinline__ bool penalties_lower(const gumbel_penalties &r)
{
    return r.repetition >= 1.0f && r.repetition <= FLT_MAX && r.frequency >= 0.0f &&
           r.frequency < 0x1p100f && r.presence >= 0.0f && r.presence < INFINITY;
}

/* The logit y of a token after penalties. The output holds the token as often as the history
 * counts, and `listed` times more. */
__device__ __forceinline__ float penalise_by_history(const gumbel_problem &q, const row_edits &e,
                                                     int64_t token, uint32_t listed, float y)
{
    const gumbel_history &h = q.history;
    if (token >= h.vocab_size)
        return y;
    bool output = read_bit(e.output, token);
    if (!output && listed == 0 && !read_bit(e.prompt, token))
        return y;
    uint32_t count = listed + (output ? gumbel_history_count(&h, e.slot, token) : 0);
    return gumbel_apply_penalties(y, &e.penalties, min(count, (uint32_t)GUMBEL_COUNT_MAX));
}

/* A bit for each of the four tokens from `token`, a multiple of 4, on: 1 if the history has it. */
__device__ __forceinline__ uint32_t seen_of_four(const gumbel_problem &q, const row_edits &e,
                                                 int64_t token)
{
    return token < q.history.vocab_size
               ? read_nibble(e.prompt, token) | read_nibble(e.output, token)
               : 0;
}

/* Edits y of the four tokens from `token`, a multiple of 4, on. Penalties apply only to tokens in
 * [q.first_token, end). */
__device__ __forceinline__ void edit_four(const gumbel_problem &q, const row_edits &e,
                                          int64_t token, int64_t end, float *y)
{
    uint32_t allowed = 15, seen = 0;
    if (token + 3 < q.first_token || token >= end)
        return;
    if (e.mask)
        allowed = read_nibble(e.mask, token);
    if (e.act)
        seen = seen_of_four(q, e, token);
    if (allowed == 15 && seen == 0)
        return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool counts = token + i >= q.first_token && token + i < end;
        if (!(allowed >> i & 1))
            y[i] = -INFINITY;
        else if ((seen >> i & 1) && counts)
            y[i] = penalise_by_history(q, e, token + i, 0, y[i]);
    }
}

} // namespace

#endif
