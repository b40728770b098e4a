/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of truncation by value, and the fixed-point masses that they compare (docs/maths.md,
 * section 9). Every comparison is of float32 values or of integers, so what is kept does not depend
 * on the order, the instruction set or the device that finds it.
 *
 * What is kept is always a head of the row sorted by larger value first, then lower id. So a cut,
 * the least value that stays and how many of its equals stay, says it all, and rules combine by
 * taking the stricter cut.
 */
#ifndef GUMBEL_MATHS_TRUNCATION_H
#define GUMBEL_MATHS_TRUNCATION_H

#include "maths/elementary.h"

#include <float.h>

/* A token's mass is this many units at the largest value: 2^31 tokens' sum below 2^92, and what a
 * float32 cannot hold in units is under 2^-61 of the largest token's. */
#define GUMBEL_MASS_UNITS 0x1p61f
/* The halves in which masses are summed without a carry: mass = high * 2^31 + low. */
#define GUMBEL_MASS_HALF_BITS 31
/* A value this far below the largest has no mass: exp(-42.3) < 2^-61, and a margin. */
#define GUMBEL_MASS_REACH 42.5f

#define GUMBEL_TIES_ALL_KEPT INT64_MAX

__extension__ typedef unsigned __int128 gumbel_wide;

/* The cut of a row. */
typedef struct gumbel_cutoff {
    float bound;  /* the least value that stays; -FLT_MAX keeps all that count */
    int64_t tied; /* how many tokens of that value stay, lower ids first; or GUMBEL_TIES_ALL_KEPT */
} gumbel_cutoff;

/* What one row asks for, in the order that it asks for. */
typedef struct gumbel_rules {
    float min_p;   /* 0: off */
    int64_t top_k; /* 0: off */
    float top_p;   /* 1: off */
    int joint;     /* top_p looks at the whole distribution, not at what the others left */
    int last;      /* min_p comes last: top_p looks at what top_k left; where all three are on */
    int exact;     /* ties at a cut are broken by id */
    int before;    /* values are y, not z */
} gumbel_rules;

GUMBEL_INLINE int gumbel_rules_truncate(const gumbel_rules *r)
{
    return r->min_p > 0.0f || r->top_k > 0 || r->top_p < 1.0f;
}

/* The mass of a token with e = gumbel_exp(value - largest). */
GUMBEL_INLINE uint64_t gumbel_token_mass(float e) { return (uint64_t)(e * GUMBEL_MASS_UNITS); }

/* ln(min_p), rounded to float32; -inf where min_p is off. */
GUMBEL_INLINE float gumbel_log_min_p(float min_p)
{
    if (!(min_p > 0.0f))
        return -INFINITY;
    /* A subnormal min_p is brought into the logarithm's range by 2^32 = exp(22.18...). */
    return min_p < FLT_MIN ? gumbel_log(min_p * 0x1p32f) - 0x1.62e43p4f : gumbel_log(min_p);
}

/* The least value that min_p keeps: largest + ln(min_p), each operation rounded to float32. */
GUMBEL_INLINE float gumbel_min_p_bound(float largest, float log_min_p)
{
    float bound = largest + log_min_p;
    return bound > -FLT_MAX ? bound : -FLT_MAX;
}

/* ceil(top_p * mass): tokens stay while the mass before them is below this. 0 < top_p < 1. */
GUMBEL_INLINE gumbel_wide gumbel_nucleus_mass(float top_p, gumbel_wide mass)
{
    /* top_p = digits * 2^-places exactly, digits < 2^24. */
    uint32_t bits = gumbel_bits_of(top_p), exponent = bits >> 23;
    uint32_t digits = (bits & 0x007fffffu) | (exponent ? 0x00800000u : 0);
    uint32_t places = 150 - (exponent ? exponent : 1);
    gumbel_wide product = mass * digits;
    if (places >= 128)
        return 1;
    gumbel_wide part = ((gumbel_wide)1 << places) - 1;
    return (product >> places) + ((product & part) != 0);
}

/* How many tokens of mass `each` bring the mass before them from `above` to `needed`. */
GUMBEL_INLINE int64_t gumbel_ties_needed(gumbel_wide needed, gumbel_wide above, gumbel_wide each)
{
    return (int64_t)((needed - above + each - 1) / each);
}

/* A value below which `count` tokens together have no more than `spare` units: they can all go. The
 * margin covers the rounding of exponential, logarithm and value. */
GUMBEL_INLINE float gumbel_nucleus_lower_bound(float largest, gumbel_wide spare, int64_t count)
{
    float share = (float)((double)spare / (double)count) * (1.0f / GUMBEL_MASS_UNITS);
    if (!(share > 0x1p-60f))
        return -FLT_MAX;
    float floor =
        largest + ((share < 1.0f ? gumbel_log(share) : 0.0f) - 0.01f) - fabsf(largest) * 0x1p-21f;
    return floor > -FLT_MAX ? floor : -FLT_MAX;
}

/* Where a search for the end of a nucleus begins: what has no mass ends none, nor do tokens whose
 * whole mass may go, nor those below the cut of the rules before it. */
GUMBEL_INLINE float gumbel_nucleus_search_start(float largest, gumbel_wide spare, int64_t count,
                                                gumbel_cutoff before)
{
    float floor = gumbel_nucleus_lower_bound(largest, spare, count);
    return fmaxf(fmaxf(floor, largest - GUMBEL_MASS_REACH), before.bound);
}

GUMBEL_INLINE gumbel_cutoff gumbel_stricter_cutoff(gumbel_cutoff a, gumbel_cutoff b)
{
    if (a.bound != b.bound)
        return a.bound > b.bound ? a : b;
    return a.tied < b.tied ? a : b;
}

/* ---------------------------------------------------------------------- how rules compose ---- */

/* The largest token always stays, so min_p's bound is the same wherever it comes, and the k-th
 * largest the same before and behind it: an order only says what top_p weighs. That is what min_p
 * and top_k leave, what top_k alone does, or all. What is kept is what all cuts keep. A search
 * finds the values; these functions make cuts of them. */

/* What may be left out before top_k is looked for. */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_before_top_k(const gumbel_rules *r, float largest)
{
    gumbel_cutoff cut = {-FLT_MAX, GUMBEL_TIES_ALL_KEPT};
    if (!r->last)
        cut.bound = gumbel_min_p_bound(largest, gumbel_log_min_p(r->min_p));
    return cut;
}

/* What top_k keeps: `value` is that of the k-th largest, `above` how many are larger. */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_by_top_k(const gumbel_rules *r, float value,
                                                   int64_t above)
{
    gumbel_cutoff cut = {value, r->exact ? r->top_k - above : GUMBEL_TIES_ALL_KEPT};
    return cut;
}

/* What top_p weighs, where `cut` is left of the first cut by top_k. */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_before_top_p(const gumbel_rules *r, gumbel_cutoff cut)
{
    gumbel_cutoff all = {-FLT_MAX, GUMBEL_TIES_ALL_KEPT};
    return r->joint ? all : cut;
}

/* What min_p and top_k keep, likewise. */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_without_top_p(const gumbel_rules *r, gumbel_cutoff cut,
                                                        float largest)
{
    gumbel_cutoff min_p = {gumbel_min_p_bound(largest, gumbel_log_min_p(r->min_p)),
                           GUMBEL_TIES_ALL_KEPT};
    return r->last ? gumbel_stricter_cutoff(cut, min_p) : cut;
}

/* What top_p keeps: the nucleus needs a mass and ends at `value`, whose tokens have mass `each`;
 * `above` is that of larger ones. */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_by_top_p(int exact, float value, gumbel_wide needed,
                                                   gumbel_wide above, uint64_t each)
{
    gumbel_cutoff cut = {value,
                         exact ? gumbel_ties_needed(needed, above, each) : GUMBEL_TIES_ALL_KEPT};
    return cut;
}

/* Values as integers in the same order; -0 counts as 0. Not for NaN. */
GUMBEL_INLINE uint32_t gumbel_key_of_value(float value)
{
    uint32_t bits = gumbel_bits_of(value + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

GUMBEL_INLINE float gumbel_value_of_key(uint32_t key)
{
    return gumbel_float_of(key >> 31 ? key & 0x7fffffffu : ~key);
}

#endif
