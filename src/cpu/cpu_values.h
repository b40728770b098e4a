/* SPDX-License-Identifier: Apache-2.0
 *
 * A row's values as the vector kernels read them, and the histogram of one selection step.
 */
#ifndef GUMBEL_CPU_VALUES_H
#define GUMBEL_CPU_VALUES_H

#include "core/row.h"
#include "cpu/cpu_policy.h"

/* Consecutive whole blocks of a row. Tokens that cannot be drawn are -inf; none is NaN or +inf. */
typedef struct cpu_span {
    const float *v;            /* [64 * blocks] */
    const float *block_maxima; /* [blocks] */
    int64_t blocks;
    int64_t step; /* kernels read every step-th block: 1, or more for a sample */
} cpu_span;

/* All values of a row: its whole blocks, and padded copies of a partial first and last block. */
typedef struct cpu_values {
    cpu_span span[3];
    int spans;
    cpu_span block_maxima; /* the maxima of all blocks as values, padded with -inf */
    int64_t blocks;
    int few;       /* if not 0: all values are the first of the only span, at most CPU_FEW */
    float largest; /* finite */
    float scale;   /* z = v * scale, not negative; 1 where v is z */
    /* 1: what is selected are not values but the negative gumbel_typical_distance() of each from
     * `centre`; scale is then 1. */
    int by_distance;
    float centre;
} cpu_values;

/* A sum of masses in two halves (truncation.h), or a count in the low half. */
typedef struct cpu_weight {
    uint64_t high, low;
} cpu_weight;

static inline gumbel_wide cpu_join_weight(cpu_weight w)
{
    return ((gumbel_wide)w.high << GUMBEL_MASS_HALF_BITS) + w.low;
}

static inline void cpu_add_weight(cpu_weight *sum, uint64_t weight)
{
    sum->high += weight >> GUMBEL_MASS_HALF_BITS;
    sum->low += weight & ((UINT64_C(1) << GUMBEL_MASS_HALF_BITS) - 1);
}

/* A histogram of the values v * scale in low .. high, by weight. */
typedef struct cpu_histogram {
    float low, high; /* finite */
    uint32_t low_key;
    int shift;     /* bin = (key - low_key) >> shift, below CPU_BINS, if slope is 0 */
    float slope;   /* else bin = (value - low) * slope */
    int by_mass;   /* 1: the weight of a token is its mass; 0: every weight is 1 */
    float largest; /* masses are relative to this value */
    float scale;
    int by_distance; /* negative distances in low .. high, in place of values (cpu_values) */
    float centre;
    cpu_weight *bins; /* [CPU_BINS] */
} cpu_histogram;

/* The bin of a value in low .. high. A larger value never has a lower bin. */
static inline uint32_t cpu_find_bin(const cpu_histogram *h, float value)
{
    if (h->slope > 0.0f)
        return (uint32_t)(int32_t)((value - h->low) * h->slope);
    return (gumbel_key_of_value(value) - h->low_key) >> h->shift;
}

#endif
