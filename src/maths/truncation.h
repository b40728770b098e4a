/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncation rules (top_k, top_p, min_p) and the fixed-point masses that they compare
 * (docs/maths.md, section 9). Only float32 values and integers are compared, so the kept set does
 * not depend on the order of summation, the instruction set or the device.
 *
 * The kept set is always a prefix of the row sorted by larger value, then lower id. A cutoff
 * describes it: the smallest kept value, and how many tokens of that value are kept. Rules combine
 * by taking the stricter cutoff.
 */
#ifndef GUMBEL_MATHS_TRUNCATION_H
#define GUMBEL_MATHS_TRUNCATION_H

#include "maths/elementary.h"

#include <float.h>

/* The fixed-point mass of the row's largest value. The sum of 2^31 tokens is at most 2^92, and a
 * mass that rounds to 0 is below 2^-61 of the largest. */
#define GUMBEL_MASS_UNITS 0x1p61f
/* Masses are summed in two halves without a carry: mass = high * 2^31 + low. */
#define GUMBEL_MASS_HALF_BITS 31
/* The mass of a value this far below the largest is 0: exp(-42.3) < 2^-61, plus a margin of 0.2. */
#define GUMBEL_MASS_REACH 42.5f

#define GUMBEL_TIES_ALL_KEPT INT64_MAX

__extension__ typedef unsigned __int128 gumbel_wide;

/* The cutoff of a row. */
typedef struct gumbel_cutoff {
    float bound; /* the smallest kept value; -FLT_MAX: all finite values are kept */
    int64_t
        tied; /* tokens of that value that are kept, lower ids first; GUMBEL_TIES_ALL_KEPT: all */
} gumbel_cutoff;

/* The rules of one row, with their order. */
typedef struct gumbel_rules {
    float min_p;   /* 0: off */
    int64_t top_k; /* 0: off */
    float top_p;   /* 1: off */
    int joint;  /* top_p applies to the whole distribution, not to the survivors of other rules */
    int last;   /* min_p applies after top_k and top_p, in this order; all three rules are on */
    int exact;  /* ties at a cutoff are broken by id */
    int before; /* rules apply before the temperature: values are y, not z */
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
    /* The logarithm takes normal numbers: a subnormal min_p is scaled by 2^32 = exp(22.18...). */
    return min_p < FLT_MIN ? gumbel_log(min_p * 0x1p32f) - 0x1.62e43p4f : gumbel_log(min_p);
}

/* The smallest value that min_p keeps: largest + ln(min_p), each operation rounded to float32. */
GUMBEL_INLINE float gumbel_min_p_bound(float largest, float log_min_p)
{
    float bound = largest + log_min_p;
    return bound > -FLT_MAX ? bound : -FLT_MAX;
}

/* ceil(top_p * mass): tokens are kept while the mass before them is below this. 0 < top_p < 1. */
GUMBEL_INLINE gumbel_wide gumbel_nucleus_mass(float top_p, gumbel_wide mass)
{
    /* top_p = digits * 2^-places exactly, digits < 2^24. */
    uint32_t bits = gumbel_bits_of(top_p), exponent = bits >> 23;
    uint32_t digits = (bits & 0x007fffffu) | (exponent ? 0x00800000u : 0);
    uint32_t places = 150 - (exponent ? exponent : 1);
    gumbel_wide product = mass * digits;
    if (places >= 128)
        return 1;
    gumbel_wide fraction = ((gumbel_wide)1 << places) - 1;
    return (product >> places) + ((product & fraction) != 0);
}

/* The number of tokens of mass `each` that raise a mass from `above` to at least `needed`. */
GUMBEL_INLINE int64_t gumbel_ties_needed(gumbel_wide needed, gumbel_wide above, gumbel_wide each)
{
    return (int64_t)((needed - above + each - 1) / each);
}

/* A lower bound on the values of the nucleus (the kept set of top_p). `count` tokens below the
 * bound have a total mass of at most `spare`, so none of them is in the nucleus. The margin covers
 * the rounding of the exponential, the logarithm and the value. */
GUMBEL_INLINE float gumbel_nucleus_lower_bound(float largest, gumbel_wide spare, int64_t count)
{
    float each = (float)((double)spare / (double)count) * (1.0f / GUMBEL_MASS_UNITS);
    if (!(each > 0x1p-60f))
        return -FLT_MAX;
    float bound =
        largest + ((each < 1.0f ? gumbel_log(each) : 0.0f) - 0.01f) - fabsf(largest) * 0x1p-21f;
    return bound > -FLT_MAX ? bound : -FLT_MAX;
}

/* Lower bound of a search for the cutoff of top_p. The cutoff is not among tokens without mass, nor
 * among those that gumbel_nucleus_lower_bound() leaves out, nor below the cutoff of earlier rules.
 */
GUMBEL_INLINE float gumbel_nucleus_search_start(float largest, gumbel_wide spare, int64_t count,
                                                gumbel_cutoff before)
{
    float bound = gumbel_nucleus_lower_bound(largest, spare, count);
    return fmaxf(fmaxf(bound, largest - GUMBEL_MASS_REACH), before.bound);
}

GUMBEL_INLINE gumbel_cutoff gumbel_stricter_cutoff(gumbel_cutoff a, gumbel_cutoff b)
{
    if (a.bound != b.bound)
        return a.bound > b.bound ? a : b;
    return a.tied < b.tied ? a : b;
}

/* ---------------------------------------------------------------------- how rules compose ---- */

/* The largest token is always kept, so min_p has one bound in every order, and so has top_k. An
 * order only determines the tokens whose masses top_p sums: the survivors of min_p and top_k, of
 * top_k alone, or all tokens. The kept set is the intersection of the kept sets of all rules. A
 * search finds the cutoff values; the functions below compute cutoffs from them. */

/* The cutoff that may be applied before the search for top_k. */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_before_top_k(const gumbel_rules *r, float largest)
{
    gumbel_cutoff cutoff = {-FLT_MAX, GUMBEL_TIES_ALL_KEPT};
    if (!r->last)
        cutoff.bound = gumbel_min_p_bound(largest, gumbel_log_min_p(r->min_p));
    return cutoff;
}

/* The cutoff of top_k: `value` is the k-th largest value, and `above` tokens have larger values. */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_by_top_k(const gumbel_rules *r, float value,
                                                   int64_t above)
{
    gumbel_cutoff cutoff = {value, r->exact ? r->top_k - above : GUMBEL_TIES_ALL_KEPT};
    return cutoff;
}

/* The cutoff of the tokens whose masses top_p sums; `cutoff` is gumbel_cutoff_before_top_k() or,
 * with a top_k, the stricter gumbel_cutoff_by_top_k(). */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_before_top_p(const gumbel_rules *r, gumbel_cutoff cutoff)
{
    gumbel_cutoff all = {-FLT_MAX, GUMBEL_TIES_ALL_KEPT};
    return r->joint ? all : cutoff;
}

/* The cutoff of min_p and top_k together; `cutoff` as in gumbel_cutoff_before_top_p(). */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_without_top_p(const gumbel_rules *r, gumbel_cutoff cutoff,
                                                        float largest)
{
    gumbel_cutoff min_p = {gumbel_min_p_bound(largest, gumbel_log_min_p(r->min_p)),
                           GUMBEL_TIES_ALL_KEPT};
    return r->last ? gumbel_stricter_cutoff(cutoff, min_p) : cutoff;
}

/* The cutoff of top_p: the mass of larger values is `above`, and tokens of mass `each` at `value`
 * raise it to `needed`. */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_by_top_p(int exact, float value, gumbel_wide needed,
                                                   gumbel_wide above, uint64_t each)
{
    gumbel_cutoff cutoff = {value,
                            exact ? gumbel_ties_needed(needed, above, each) : GUMBEL_TIES_ALL_KEPT};
    return cutoff;
}

/* Maps a value to an integer of the same order; -0 counts as 0. Not for NaN. */
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
