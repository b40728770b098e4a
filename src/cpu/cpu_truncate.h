/* SPDX-License-Identifier: Apache-2.0
 *
 * The cut of a row on the CPU: what the vector passes hand to the walk that finds it.
 */
#ifndef GUMBEL_CPU_TRUNCATE_H
#define GUMBEL_CPU_TRUNCATE_H

#include "core/problem.h"
#include "core/truncation.h"
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

/* A sum of masses in two halves (core/truncation.h), or of ones in the low half. */
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
    return (gumbel_key(value) - t->low_key) >> t->shift;
}

/* Where a descent ended: the largest value at which the weight of what is not below it reaches what
 * was needed. */
typedef struct cpu_landing {
    int reached; /* 0: all of it is too little, and the rest is undefined */
    float value;
    gumbel_wide above; /* weight of larger values */
    gumbel_wide at;    /* weight of the tokens of that value */
} cpu_landing;

typedef struct cpu_kernels cpu_kernels;

/* Descend over values v * values->scale that are not below `floor`. bins: [CPU_BINS] of scratch. */
cpu_landing cpu_descend(const cpu_kernels *kernels, const cpu_values *values, int by_mass,
                        gumbel_wide needed, float floor, cpu_weight *bins);

/* The same for the n-th largest value: weights are ones. */
cpu_landing cpu_nth_largest(const cpu_kernels *kernels, const cpu_values *values, int64_t n,
                            float floor, cpu_weight *bins);

/* The cut of a row by its rules. */
gumbel_cut cpu_find_cut(const cpu_kernels *kernels, const cpu_values *values,
                        const gumbel_rules *rules, cpu_weight *bins);

#endif
