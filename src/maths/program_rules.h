/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of programs (docs/maths.md, section 15): exact sums over the tokens that remain, and
 * the thresholds that follow from them. Sums are integers, so they do not depend on the order of
 * summation, the instruction set or the device. A threshold is then a fixed sequence of double and
 * float operations.
 */
#ifndef GUMBEL_MATHS_PROGRAM_RULES_H
#define GUMBEL_MATHS_PROGRAM_RULES_H

#include "maths/truncation.h"

#define GUMBEL_LN2 0x1.62e43p-1f
/* Values and distances are summed in units of 2^-16. */
#define GUMBEL_VALUE_UNITS 0x1p16f
/* Values beyond this are summed as this. The sum of 2^31 squares then fits in 94 bits. */
#define GUMBEL_VALUE_LIMIT 0x1p15f

/* Sums over tokens with values v above -inf, whose largest value is m, with
 * mass = 2^61 exp(v - m), rounded down. */
typedef struct gumbel_facts {
    int64_t count;
    gumbel_wide mass;
    gumbel_wide weighted; /* of mass times rint((m - v) 2^16) */
    gumbel_wide squared;  /* of 2^61 exp(2 (v - m)), rounded down */
    int64_t sum;          /* of rint(v 2^16) */
    gumbel_wide squares;  /* of rint(v 2^16)^2 */
} gumbel_facts;

/* Which sums a rule requires: bits. The count is always required. */
enum {
    GUMBEL_FACT_MASS = 1,
    GUMBEL_FACT_ENTROPY = 2, /* `mass` and `weighted` */
    GUMBEL_FACT_SQUARED = 4, /* `mass` and `squared` */
    GUMBEL_FACT_SPREAD = 8,  /* `sum` and `squares` */
};

/* rint(x 2^16) as an integer, x clamped to GUMBEL_VALUE_LIMIT. */
GUMBEL_INLINE int64_t gumbel_value_units(float x)
{
    const float limited = fminf(fmaxf(x, -GUMBEL_VALUE_LIMIT), GUMBEL_VALUE_LIMIT);
    return (int64_t)rintf(limited * GUMBEL_VALUE_UNITS);
}

/* Adds one token, with e = exp(v - largest), and if `squared` is required, e_squared = exp(2 (v -
 * largest)), by gumbel_exp(). */
GUMBEL_INLINE void gumbel_facts_add(gumbel_facts *f, int required, float v, float largest, float e,
                                    float e_squared)
{
    const uint64_t mass = gumbel_token_mass(e);
    f->count++;
    f->mass += mass;
    if (required & GUMBEL_FACT_ENTROPY)
        f->weighted += (gumbel_wide)mass * (uint64_t)gumbel_value_units(largest - v);
    if (required & GUMBEL_FACT_SQUARED)
        f->squared += gumbel_token_mass(e_squared);
    if (required & GUMBEL_FACT_SPREAD) {
        const int64_t units = gumbel_value_units(v);
        f->sum += units;
        f->squares += (uint64_t)(units * units);
    }
}

/* ln of a mass over that of the largest token: ln(sum exp(v - m)), and for `squared`
 * ln(sum exp(2 (v - m))). At least 0. */
GUMBEL_INLINE float gumbel_log_mass(gumbel_wide mass)
{
    return gumbel_log((float)((double)mass * 0x1p-61));
}

/* - sum p ln p */
GUMBEL_INLINE float gumbel_facts_entropy(const gumbel_facts *f)
{
    return gumbel_log_mass(f->mass) + (float)((double)f->weighted / ((double)f->mass * 0x1p16));
}

/* The standard deviation of the values. */
GUMBEL_INLINE float gumbel_facts_deviation(const gumbel_facts *f)
{
    const uint64_t size = f->sum < 0 ? 0 - (uint64_t)f->sum : (uint64_t)f->sum;
    const gumbel_wide spread =
        f->squares * (uint64_t)f->count - (gumbel_wide)size * size; /* n^2 times the variance */
    return (float)(sqrt((double)spread) / ((double)f->count * 0x1p16));
}

/* The smallest value that a rule keeps, distance >= 0 below the largest value. */
GUMBEL_INLINE float gumbel_threshold_below(float largest, float distance)
{
    const float bound = largest - distance;
    return bound > -FLT_MAX ? bound : -FLT_MAX;
}

/* ln p is v - m - ln(mass): the least distance m - v of tokens with ln p < log_probability. */
GUMBEL_INLINE float gumbel_distance_of_probability(const gumbel_facts *f, float log_probability)
{
    return fmaxf(-(gumbel_log_mass(f->mass) + log_probability), 0.0f);
}

/* ln of a probability in (0, 1], which may be subnormal. */
GUMBEL_INLINE float gumbel_log_probability(float p) { return gumbel_log_min_p(p); }

GUMBEL_INLINE float gumbel_distance_of_eta(const gumbel_facts *f, float eta)
{
    const float log_eta = gumbel_log_probability(eta);
    return gumbel_distance_of_probability(f,
                                          fminf(log_eta, 0.5f * log_eta - gumbel_facts_entropy(f)));
}

GUMBEL_INLINE float gumbel_distance_of_top_a(const gumbel_facts *f, float top_a)
{
    const float log_mass = gumbel_log_mass(f->mass);
    return fmaxf(log_mass - gumbel_log_probability(top_a), 0.0f);
}

GUMBEL_INLINE float gumbel_distance_of_p_less(const gumbel_facts *f)
{
    return fmaxf(gumbel_log_mass(f->mass) - gumbel_log_mass(f->squared), 0.0f);
}

/* How far -ln p of a value is from the entropy, given centre = ln(mass) - entropy. */
GUMBEL_INLINE float gumbel_typical_distance(float v, float largest, float centre)
{
    return fabsf((v - largest) - centre);
}

/* The temperature that follows from the entropy. */
GUMBEL_INLINE float gumbel_dynamic_temperature(const gumbel_facts *f, float temperature,
                                               float range, float exponent)
{
    const float low = fmaxf(temperature - range, 0.0f), high = fminf(temperature + range, FLT_MAX);
    const float most = gumbel_log((float)f->count);
    if (f->count < 2)
        return temperature;
    const float ratio = fminf(gumbel_facts_entropy(f) / most, 1.0f);
    const float power = ratio >= FLT_MIN ? gumbel_exp(exponent * gumbel_log(ratio)) : 0.0f;
    return low + (high - low) * (exponent > 0.0f ? power : 1.0f);
}

/* A value after SMOOTHING, which keeps the order of values up to `largest`. No step is NaN, even
 * for values that engines mask with -FLT_MAX: these become -inf. */
GUMBEL_INLINE float gumbel_smooth_value(float v, float largest, float factor, float curve)
{
    const float d = fminf(largest - v, FLT_MAX);
    const float k = 0.5f * (3.0f - curve) * factor, s = 0.5f * (curve - 1.0f) * factor;
    return v == largest ? v : (largest - k * d * d) - s * d * d * d;
}

/* The inverse of sum exp(v - m). */
GUMBEL_INLINE float gumbel_invert_mass(gumbel_wide mass)
{
    return (float)(1.0 / ((double)mass * 0x1p-61));
}

/* A value after ADAPTIVE_P, in [-21, 5]; values keep neither their order nor their ties. */
GUMBEL_INLINE float gumbel_adapt_value(float v, float largest, float inverse_mass, float target)
{
    const float p = gumbel_exp(v - largest) * inverse_mass;
    const float d = fabsf(p - target) * (1.0f / 0.3f);
    return 5.0f - 10.0f * d * d / (1.0f + d);
}

/* XTC: the constant that is added to z of the excluded tokens, ln((1 - P) / (1 + P E / R)); -inf
 * for P = 1. The masses E of the excluded and R of the remaining tokens are relative to the largest
 * value of each, which differ by `distance`, so that neither vanishes at a low temperature. */
GUMBEL_INLINE float gumbel_xtc_shift(float probability, gumbel_wide excluded, gumbel_wide remaining,
                                     float distance)
{
    const float log_odds = gumbel_log_mass(excluded) - gumbel_log_mass(remaining) + distance;
    const float x = gumbel_log_probability(probability) + log_odds;
    const float softplus = fmaxf(x, 0.0f) + gumbel_log(1.0f + gumbel_exp(-fabsf(x)));
    return gumbel_log_probability(1.0f - probability) - softplus;
}

#endif
