/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides from the bounds of a row's values whether a token survives truncation
 * (screen_truncation.h). If the bounds do not determine the result, some values are computed
 * exactly and replace their upper and lower bounds, until the result is determined.
 */
#ifndef GUMBEL_CPU_SCREEN_VERDICT_H
#define GUMBEL_CPU_SCREEN_VERDICT_H

#include "cpu/call/screen/cpu_screen.h"
#include "maths/screen_truncation.h"

/* The state of truncating one row. */
typedef struct cpu_verdict_state {
    cpu_screen *screen;
    const cpu_kernels *kernels;
    int64_t b;
    int32_t thread;
    gumbel_rules rules;
    cpu_values upper, lower;
    float largest;    /* exact largest value of the row; NaN if no rule depends on it */
    int32_t budget;   /* values that may still be computed before the full pass is faster */
    int stale;        /* a value was outside its bounds: the weights changed after the screen was
                         made, and no verdict on this row holds */
    cpu_weight *bins; /* [CPU_BINS] */
} cpu_verdict_state;

/* Finds the row's largest value, if a rule depends on it. Returns 0 if the search exceeds the
 * budget. */
int cpu_find_largest_value(cpu_verdict_state *state);

/* Initialises `state` for row b, then calls cpu_find_largest_value(). */
int cpu_init_verdict_state(cpu_verdict_state *state, cpu_screen *screen, int64_t b, int32_t thread,
                           cpu_weight *bins);

/* The exact value of a token. Sets state->stale if the value is outside its bounds; the result is
 * then an arbitrary finite value. */
float cpu_find_exact_value(cpu_verdict_state *state, int64_t token);

/* Whether a token with this exact value survives. */
gumbel_token_verdict cpu_determine_verdict(cpu_verdict_state *state, int64_t token, float value);

/* A threshold: truncation removes all tokens below it. */
float cpu_find_removal_threshold(const cpu_verdict_state *state);

/* Computes all values whose upper bound is at least min_upper. Returns 0 if they exceed the budget,
 * or if the screen is found stale. */
int cpu_compute_values_from(cpu_verdict_state *state, float min_upper);

/* The n-th largest lower bound; -FLT_MAX if fewer tokens have one. */
float cpu_find_nth_lower(const cpu_verdict_state *state, int64_t n);

/* The bound of min_p; -FLT_MAX without min_p. */
float cpu_find_min_p_bound(const cpu_verdict_state *state);

/* Draws row b with truncation (cpu_truncate_row_fn): a draw whose winner is removed is repeated. */
int cpu_draw_truncated_row(cpu_screen *screen, int64_t b, int32_t thread);

#endif
