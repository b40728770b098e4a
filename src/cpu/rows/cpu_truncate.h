/* SPDX-License-Identifier: Apache-2.0
 *
 * Selection and truncation in the values of one row.
 */
#ifndef GUMBEL_CPU_TRUNCATE_H
#define GUMBEL_CPU_TRUNCATE_H

#include "cpu/cpu_kernels.h"

/* The largest value at which the weight of all values at or above it reaches a given weight. */
typedef struct cpu_selection {
    int reached; /* 0: the total weight is less, and the rest is undefined */
    float value;
    gumbel_wide above; /* weight of larger values */
    gumbel_wide at;    /* weight of the tokens of that value */
} cpu_selection;

/* Selects among values v * values->scale >= `min_value`, by mass or by number, where the weight
 * reaches `needed`. bins: [CPU_BINS] of scratch. */
cpu_selection cpu_select_by_weight(const cpu_kernels *kernels, const cpu_values *values,
                                   int by_mass, gumbel_wide needed, float min_value,
                                   cpu_weight *bins);

/* cpu_select_by_weight() of the n-th largest value, n > 0. */
cpu_selection cpu_select_nth_largest(const cpu_kernels *kernels, const cpu_values *values,
                                     int64_t n, float min_value, cpu_weight *bins);

/* cpu_select_by_weight() by mass, where `count` tokens have `mass` in all. A sample guesses where
 * the search begins. */
cpu_selection cpu_select_nucleus(const cpu_kernels *kernels, const cpu_values *values,
                                 gumbel_wide mass, gumbel_wide needed, int64_t count,
                                 float min_value, cpu_weight *bins);

/* Adds the masses, relative to `largest`, of a row's values >= `bound`. Returns their number,
 * without some tokens whose mass is 0. */
int64_t cpu_sum_row_masses(const cpu_kernels *kernels, const cpu_values *values, float bound,
                           float largest, gumbel_wide *mass);

/* The number of a row's values with v * scale > bound. */
int64_t cpu_count_row_above(const cpu_kernels *kernels, const cpu_values *values, float scale,
                            float bound);

/* The truncation of a row by its rules. */
gumbel_cutoff cpu_find_truncation(const cpu_kernels *kernels, const cpu_values *values,
                                  const gumbel_rules *rules, cpu_weight *bins);

#endif
