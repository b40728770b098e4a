/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides from the bounds of a row's values whether a token survives truncation
 * (screen_truncation.h). Values that the decision depends on are computed exactly, and then replace
 * both of their bounds.
 */
#ifndef GUMBEL_CPU_SCREEN_JUDGE_H
#define GUMBEL_CPU_SCREEN_JUDGE_H

#include "cpu/call/screen/cpu_screen.h"
#include "maths/screen_truncation.h"

/* Truncation of one row as far as it is known. */
typedef struct cpu_judge_state {
    cpu_screen *screen;
    const cpu_kernels *kernels;
    int64_t b;
    int32_t thread;
    gumbel_rules rules;
    cpu_values upper, lower;
    float largest;    /* exact, and no bound is above it; NaN if no rule depends on it */
    int32_t budget;   /* values that may still be computed before the full pass is faster */
    int stale;        /* a value was outside its bounds: the weights changed after the screen was
                         made, and no verdict on this row holds */
    cpu_weight *bins; /* [CPU_BINS] */
} cpu_judge_state;

/* Finds the row's largest value, if a rule depends on it. Returns 0 if that exceeds the budget. */
int cpu_find_largest_value(cpu_judge_state *state);

/* Starts with row b, and finds its largest value. */
int cpu_begin_judging(cpu_judge_state *state, cpu_screen *screen, int64_t b, int32_t thread,
                      cpu_weight *bins);

/* The exact value of a token; any finite value if the screen is found stale. */
float cpu_find_exact_value(cpu_judge_state *state, int64_t token);

/* Whether a token with this exact value survives. */
gumbel_token_verdict cpu_judge_token(cpu_judge_state *state, int64_t token, float value);

/* A value below which all tokens are known to be removed. */
float cpu_find_removal_threshold(const cpu_judge_state *state);

/* Draws row b with truncation (cpu_truncate_row_fn): a draw whose winner is removed is repeated. */
int cpu_draw_truncated_row(cpu_screen *screen, int64_t b, int32_t thread);

#endif
