/* SPDX-License-Identifier: Apache-2.0
 *
 * The cut of a row on the CPU: the walk over what vector passes find.
 */
#ifndef GUMBEL_CPU_TRUNCATE_H
#define GUMBEL_CPU_TRUNCATE_H

#include "cpu/cpu_kernels.h"

/* Where a descent ended: the largest value at which the weight of what is not below it reaches what
 * was needed. */
typedef struct cpu_landing {
    int reached; /* 0: all of it is too little, and the rest is undefined */
    float value;
    gumbel_wide above; /* weight of larger values */
    gumbel_wide at;    /* weight of the tokens of that value */
} cpu_landing;

/* Descend over values v * values->scale that are not below `floor`. bins: [CPU_BINS] of scratch. */
cpu_landing cpu_descend(const cpu_kernels *kernels, const cpu_values *values, int by_mass,
                        gumbel_wide needed, float floor, cpu_weight *bins);

/* The same for the n-th largest value: weights are ones. */
cpu_landing cpu_nth_largest(const cpu_kernels *kernels, const cpu_values *values, int64_t n,
                            float floor, cpu_weight *bins);

/* The cut of a row by its rules. */
gumbel_cutoff cpu_find_cut(const cpu_kernels *kernels, const cpu_values *values,
                           const gumbel_rules *rules, cpu_weight *bins);

#endif
