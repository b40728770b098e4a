/* SPDX-License-Identifier: Apache-2.0
 *
 * A row's values as vector passes go through them, and what one pass hands to the walk that finds a
 * cut.
 */
#ifndef GUMBEL_CPU_VALUES_H
#define GUMBEL_CPU_VALUES_H

#include "core/row.h"
#include "cpu/cpu_policy.h"

/* A stretch of whole blocks of a row: values, of which -inf does not count, none NaN or +inf. */
typedef struct cpu_stretch {
    const float *v;       /* [64 * blocks] */
    const float *largest; /* [blocks] the largest value of each block */
    int64_t blocks;
    int64_t step; /* passes look at every step-th block: 1, or more for a sample */
} cpu_stretch;

/* A row's values: its whole blocks, and before and behind them those that the shard's ends cut, in
 * padded copies. */
typedef struct cpu_values {
    cpu_stretch stretch[3];
    int stretches;
    cpu_stretch peaks; /* the largest values of all blocks, as values: behind them -inf */
    int64_t blocks;
    float largest; /* of all, finite */
    float scale;   /* z = v * scale, a non-negative number: 1 where v is z */
} cpu_values;

/* A sum of masses in two halves (truncation.h), or of ones in the low half. */
typedef struct cpu_weight {
    uint64_t high, low;
} cpu_weight;

static inline gumbel_wide cpu_weight_of(cpu_weight w)
{
    return ((gumbel_wide)w.high << GUMBEL_MASS_HALF_BITS) + w.low;
}

static inline void cpu_weight_add(cpu_weight *sum, uint64_t weight)
{
    sum->high += weight >> GUMBEL_MASS_HALF_BITS;
    sum->low += weight & ((UINT64_C(1) << GUMBEL_MASS_HALF_BITS) - 1);
}

/* What one step of a descent sums: the weights of values v * scale in low .. high, by the bins of
 * their keys. */
typedef struct cpu_tally {
    float low, high; /* finite */
    uint32_t low_key;
    int shift;   /* bin = (key - low_key) >> shift, below CPU_BINS; */
    float slope; /* or, where this is not 0, (value - low) * slope */
    int by_mass;
    float largest; /* masses are relative to this value */
    float scale;
    cpu_weight *bins; /* [CPU_BINS] */
} cpu_tally;

/* The bin of a value in low .. high; it never falls as the value grows. */
static inline uint32_t cpu_tally_bin(const cpu_tally *t, float value)
{
    if (t->slope > 0.0f)
        return (uint32_t)(int32_t)((value - t->low) * t->slope);
    return (gumbel_key_of_value(value) - t->low_key) >> t->shift;
}

#endif
