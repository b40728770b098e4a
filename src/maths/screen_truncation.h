/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides whether truncation keeps a token, from bounds of the row's values alone (docs/maths.md,
 * section 14). A screen gives bounds of the number and the mass of the tokens that precede it in
 * the row, sorted by larger value, then lower id.
 */
#ifndef GUMBEL_MATHS_SCREEN_TRUNCATION_H
#define GUMBEL_MATHS_SCREEN_TRUNCATION_H

#include "maths/truncation.h"

typedef enum gumbel_token_verdict {
    GUMBEL_TOKEN_UNDECIDED, /* the bounds do not determine it */
    GUMBEL_TOKEN_KEPT,
    GUMBEL_TOKEN_TRUNCATED,
} gumbel_token_verdict;

/* Bounds of a sum of masses. */
typedef struct gumbel_mass_bounds {
    gumbel_wide min, max;
} gumbel_mass_bounds;

/* Applies top_k to a token that min_before to max_before tokens precede. */
GUMBEL_INLINE gumbel_token_verdict gumbel_determine_top_k_verdict(int64_t top_k, int64_t min_before,
                                                                  int64_t max_before)
{
    return max_before < top_k    ? GUMBEL_TOKEN_KEPT
           : min_before >= top_k ? GUMBEL_TOKEN_TRUNCATED
                                 : GUMBEL_TOKEN_UNDECIDED;
}

/* Bounds of the summed masses of `tokens` values, from the sums over their lower and upper bounds.
 * The exponential is not proven monotone: its relative error is 2^-24 (4 + 42.5) at either value,
 * and the error of a mass is a unit. */
GUMBEL_INLINE gumbel_mass_bounds gumbel_bound_mass_sum(gumbel_wide lower, gumbel_wide upper,
                                                       int64_t tokens)
{
    gumbel_wide under = (lower >> 16) + (gumbel_wide)tokens;
    gumbel_mass_bounds sum = {lower > under ? lower - under : 0,
                              upper + (upper >> 16) + (gumbel_wide)tokens};
    return sum;
}

/* Applies top_p to a token. a, `before`, is the mass of the tokens before it; r, `remaining`, is
 * its own mass and that of the tokens after it that top_p counts. The token is kept if a < ceil(p
 * (a + r)), roughly a (1 - p) < p r: a larger a can only remove the token, and a larger r can only
 * keep it. */
GUMBEL_INLINE gumbel_token_verdict gumbel_determine_top_p_verdict(float top_p,
                                                                  gumbel_mass_bounds before,
                                                                  gumbel_mass_bounds remaining)
{
    if (before.max < gumbel_nucleus_mass(top_p, before.max + remaining.min))
        return GUMBEL_TOKEN_KEPT;
    if (before.min >= gumbel_nucleus_mass(top_p, before.min + remaining.max))
        return GUMBEL_TOKEN_TRUNCATED;
    return GUMBEL_TOKEN_UNDECIDED;
}

#endif
