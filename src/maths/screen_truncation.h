/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a token stays, told by intervals alone (docs/maths.md, section 14): of the tokens before
 * it, in the row sorted by larger value, then lower id, a screen knows how many there are at least
 * and at most, and what they weigh.
 */
#ifndef GUMBEL_MATHS_SCREEN_TRUNCATION_H
#define GUMBEL_MATHS_SCREEN_TRUNCATION_H

#include "maths/truncation.h"

typedef enum gumbel_token_verdict {
    GUMBEL_TOKEN_UNDECIDED, /* the intervals do not tell */
    GUMBEL_TOKEN_KEPT,
    GUMBEL_TOKEN_TRUNCATED,
} gumbel_token_verdict;

/* Bounds of a sum of masses. */
typedef struct gumbel_mass_bounds {
    gumbel_wide least, most;
} gumbel_mass_bounds;

/* By top_k, of a token that has `least` to `most` others before it. */
GUMBEL_INLINE gumbel_token_verdict gumbel_judge_top_k(int64_t top_k, int64_t least, int64_t most)
{
    return most < top_k     ? GUMBEL_TOKEN_KEPT
           : least >= top_k ? GUMBEL_TOKEN_TRUNCATED
                            : GUMBEL_TOKEN_UNDECIDED;
}

/* Bounds of the masses of `tokens` values, from the sums of those of their ends. The exponential
 * is not proven monotone: it is off by 2^-24 (4 + 42.5) of itself, at either of two values, and a
 * mass by a unit. */
GUMBEL_INLINE gumbel_mass_bounds gumbel_bound_mass_sum(gumbel_wide lower, gumbel_wide upper,
                                                       int64_t tokens)
{
    gumbel_wide under = (lower >> 16) + (gumbel_wide)tokens;
    gumbel_mass_bounds sum = {lower > under ? lower - under : 0,
                              upper + (upper >> 16) + (gumbel_wide)tokens};
    return sum;
}

/* By top_p, of a token with the masses `before` it and `rest`: its own, and those behind it that
 * top_p weighs. It stays while a < ceil(p (a + r)), that is a (1 - p) < p r: what comes before can
 * only speak against it, and the rest for it. */
GUMBEL_INLINE gumbel_token_verdict gumbel_judge_top_p(float top_p, gumbel_mass_bounds before,
                                                      gumbel_mass_bounds rest)
{
    if (before.most < gumbel_nucleus_mass(top_p, before.most + rest.least))
        return GUMBEL_TOKEN_KEPT;
    if (before.least >= gumbel_nucleus_mass(top_p, before.least + rest.most))
        return GUMBEL_TOKEN_TRUNCATED;
    return GUMBEL_TOKEN_UNDECIDED;
}

#endif
