/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done to one logit before the draw (docs/maths.md, sections 2 and 8). Each operation is
 * one IEEE-754 operation, so that every backend gets the same bits.
 *
 * A masked or banned token has z = -inf whatever else is done to it, so a backend may set that
 * last. A token that is none of listed, masked, banned and seen keeps its bits.
 */
#ifndef GUMBEL_MATHS_EDITS_H
#define GUMBEL_MATHS_EDITS_H

#include "maths/elementary.h"

/* The penalties of a row. */
typedef struct gumbel_penalties {
    float repetition, frequency, presence;
} gumbel_penalties;

/* Whether they change anything. */
GUMBEL_INLINE int gumbel_penalties_are_active(const gumbel_penalties *q)
{
    return q->repetition != 1.0f || q->frequency != 0.0f || q->presence != 0.0f;
}

/* y of a token that is in the prompt or in the output, there `count` times. What is -inf or NaN
 * stays, so that no penalty brings back what cannot be drawn. */
GUMBEL_INLINE float gumbel_apply_penalties(float y, const gumbel_penalties *q, uint32_t count)
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

/* Transformed logit z of a logit, eq. 2. What is not finite passes the soft-cap unchanged. */
GUMBEL_INLINE float gumbel_transform_logit(float logit, float scale, float soft_cap,
                                           float inverse_cap, float inverse_temperature)
{
    float y = logit * scale;
    if (soft_cap > 0.0f && fabsf(y) < INFINITY)
        y = soft_cap * gumbel_tanh(y * inverse_cap);
    return y * inverse_temperature;
}

/* Words of 32 tokens that hold `tokens`. */
GUMBEL_INLINE int64_t gumbel_mask_words_of(int64_t tokens) { return (tokens + 31) / 32; }

#endif
