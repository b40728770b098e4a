/* SPDX-License-Identifier: Apache-2.0
 *
 * Transforms of one logit before the draw (docs/maths.md, sections 2 and 8). Each operation is one
 * IEEE-754 operation, so that every backend gets the same bits.
 *
 * A masked or banned token has z = -inf regardless of other edits, so a backend may apply that
 * last. A token that is not listed, masked, banned or in the history keeps its bits.
 */
#ifndef GUMBEL_MATHS_EDITS_H
#define GUMBEL_MATHS_EDITS_H

#include "maths/elementary.h"

/* The penalties of a row. */
typedef struct gumbel_penalties {
    float repetition, frequency, presence;
} gumbel_penalties;

/* Whether the penalties change any logit. */
GUMBEL_INLINE int gumbel_penalties_are_active(const gumbel_penalties *q)
{
    return q->repetition != 1.0f || q->frequency != 0.0f || q->presence != 0.0f;
}

/* y of a token that is in the prompt or, `count` times, in the output. -inf and NaN stay, so that
 * no penalty makes a token drawable. */
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

/* The transformed logit z of a logit, eq. 2. The soft-cap leaves infinities and NaN unchanged. */
GUMBEL_INLINE float gumbel_transform_logit(float logit, float scale, float soft_cap,
                                           float inverse_cap, float inverse_temperature)
{
    float y = logit * scale;
    if (soft_cap > 0.0f && fabsf(y) < INFINITY)
        y = soft_cap * gumbel_tanh(y * inverse_cap);
    return y * inverse_temperature;
}

/* Number of 32-bit mask words for `tokens` tokens. */
GUMBEL_INLINE int64_t gumbel_mask_words_of(int64_t tokens) { return (tokens + 31) / 32; }

#endif
