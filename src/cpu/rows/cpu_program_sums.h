/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes over the staged values of a row that runs its program: sums, selections, removals and
 * changes of values. Block maxima are kept up to date; a block without tokens has -inf, and its
 * values are then not defined. The first change copies the blocks with tokens, if the staged values
 * are the caller's logits.
 */
#ifndef GUMBEL_CPU_PROGRAM_SUMS_H
#define GUMBEL_CPU_PROGRAM_SUMS_H

#include "core/row_program.h"
#include "cpu/call/cpu_stage.h"

typedef struct cpu_program_row {
    const cpu_job *job;
    const cpu_kernels *kernels;
    int64_t b, blocks;
    float *maxima; /* [blocks] */
    /* Tokens that XTC excludes: values above `excluded_from`, and equal ones with an id below
     * excluded_end. */
    float excluded_from;
    int64_t excluded_end;
} cpu_program_row;

cpu_program_row cpu_make_program_row(const cpu_job *job, int64_t b);

/* All values as the selections of cpu_truncate.h read them. */
cpu_values cpu_get_program_values(const cpu_program_row *row);

/* The sums that `required`, one GUMBEL_FACT_ bit, names. */
gumbel_facts cpu_sum_facts(const cpu_program_row *row, int required);

void cpu_remove_below(cpu_program_row *row, gumbel_cutoff cutoff);

/* The smallest gumbel_typical_distance() at which the tokens up to it have typical_p of the mass,
 * or are `count` in number; +inf if no finite one is. `facts` has mass and number of all tokens. */
float cpu_select_typical_mass(const cpu_program_row *row, float centre, float typical_p,
                              const gumbel_facts *facts);
float cpu_select_typical_count(const cpu_program_row *row, float centre, int64_t count);

/* Removes the tokens farther from the centre than `reach`. */
void cpu_remove_atypical(cpu_program_row *row, float centre, float reach);

/* Multiplies all values by a positive factor. */
void cpu_scale_program_row(cpu_program_row *row, float factor);

/* gumbel_smooth_value() of all values. */
void cpu_smooth_program_row(cpu_program_row *row, float factor, float curve);

/* gumbel_adapt_value() of all values. */
void cpu_adapt_program_row(cpu_program_row *row, float target);

/* The number of values that reach `bound`, and the smallest one of them. */
int64_t cpu_find_smallest_from(const cpu_program_row *row, float bound, float *smallest);

/* Sets the tokens that XTC excludes: values above `from`, and if `exact` all equal ones but that of
 * the highest id. */
void cpu_set_exclusion(cpu_program_row *row, float from, int exact);

int cpu_is_excluded(const cpu_program_row *row, int64_t token);

/* Number and mass of the excluded tokens, relative to the largest value, and of the others,
 * relative to `excluded_from`, which is their largest value. */
typedef struct cpu_exclusion {
    int64_t excluded_count, remaining_count;
    gumbel_wide excluded, remaining;
} cpu_exclusion;

cpu_exclusion cpu_sum_exclusion(const cpu_program_row *row);

/* Adds `shift` to the values of the excluded tokens; -inf removes them. */
void cpu_shift_excluded(cpu_program_row *row, float shift);

#endif
