/* SPDX-License-Identifier: Apache-2.0
 *
 * Selection where few values remain, which costs less than histograms.
 */
#ifndef GUMBEL_CPU_FEW_VALUES_H
#define GUMBEL_CPU_FEW_VALUES_H

#include "cpu/rows/cpu_truncate.h"

/* Whether cpu_guess_nth_largest() takes this n and number of blocks. */
int cpu_guesses_nth_largest(int64_t n, int64_t blocks);

/* A value, times `scale` and at least `min_value`, that n values of a row reach, and probably few
 * more. maxima: [blocks], of the row's blocks. */
float cpu_guess_nth_largest(const float *maxima, int64_t blocks, int64_t n, float scale,
                            float min_value);

/* cpu_select_by_weight() among values->few values. */
cpu_selection cpu_select_among_few(const cpu_values *values, int by_mass, gumbel_wide needed,
                                   float min_value);

#endif
