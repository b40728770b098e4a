/* SPDX-License-Identifier: Apache-2.0
 *
 * The transforms between soft-cap and temperature, for one token (docs/maths.md, section 8). Each
 * operation is one IEEE-754 operation, so that every backend gets the same bits.
 *
 * A masked or banned token has z = -inf whatever else is done to it, so a backend may set that
 * last. A token that is none of listed, masked, banned and seen keeps its bits.
 */
#ifndef GUMBEL_CORE_EDITS_H
#define GUMBEL_CORE_EDITS_H

#include "core/problem.h"

/* Counts end here. */
#define GUMBEL_COUNT_MOST 65535u

/* The penalties of a row. */
typedef struct gumbel_penalties {
    float repetition, frequency, presence;
} gumbel_penalties;

GUMBEL_INLINE gumbel_penalties gumbel_problem_penalties(const gumbel_problem *p, int64_t b)
{
    const gumbel_transforms *t = &p->transforms;
    gumbel_penalties q;
    q.repetition = t->repetition ? t->repetition[b * t->repetition_stride] : 1.0f;
    q.frequency = t->frequency ? t->frequency[b * t->frequency_stride] : 0.0f;
    q.presence = t->presence ? t->presence[b * t->presence_stride] : 0.0f;
    return q;
}

/* Whether they change anything. */
GUMBEL_INLINE int gumbel_penalties_act(const gumbel_penalties *q)
{
    return q->repetition != 1.0f || q->frequency != 0.0f || q->presence != 0.0f;
}

/* y of a token that is in the prompt or in the output, there `count` times. What is -inf or NaN
 * stays, so that no penalty brings back what cannot be drawn. */
GUMBEL_INLINE float gumbel_penalise(float y, const gumbel_penalties *q, uint32_t count)
{
    if (!(y > -INFINITY))
        return y;
    float divided = y / q->repetition, multiplied = y * q->repetition;
    y = y > 0.0f ? divided : multiplied;
    if (count == 0)
        return y;
    y = y - q->frequency * (float)count;
    return y - q->presence;
}

/* Words of 32 tokens that hold `tokens`. */
GUMBEL_INLINE int64_t gumbel_words_of(int64_t tokens) { return (tokens + 31) / 32; }

/* Row b's mask; its word t >> 5 holds token t. */
GUMBEL_INLINE const int32_t *gumbel_problem_mask(const gumbel_problem *p, int64_t b)
{
    return p->transforms.mask + b * p->transforms.mask_stride;
}

#endif
