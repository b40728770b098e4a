/* SPDX-License-Identifier: Apache-2.0
 *
 * A row whose truncation is told by the two ends of its values (maths/screen_truncation.h). Values
 * that decide are scored exactly, and stand in place of both ends from then on.
 */
#ifndef GUMBEL_CPU_SCREEN_JUDGE_H
#define GUMBEL_CPU_SCREEN_JUDGE_H

#include "cpu/call/screen/cpu_screen.h"
#include "maths/screen_truncation.h"

typedef struct cpu_judged {
    cpu_screen *screen;
    const cpu_kernels *kernels;
    int64_t b;
    int32_t thread;
    gumbel_rules rules;
    cpu_values upper, lower;
    float largest;    /* exact, and no end is above it; NaN where no rule asks for it */
    int32_t left;     /* how many may still be scored before the full pass is better */
    int stale;        /* a value was outside its bounds: the weights have changed since the screen
                         was made, and no verdict on this row holds */
    cpu_weight *bins; /* [CPU_BINS] */
} cpu_judged;

/* Find the largest value, if a rule asks for it. 0 where that takes too long. */
int cpu_judge_largest(cpu_judged *judged);

/* Begin with row b, and find its largest value. */
int cpu_judge_begin(cpu_judged *judged, cpu_screen *screen, int64_t b, int32_t thread,
                    cpu_weight *bins);

/* The exact value of a token; any finite value where it is found stale. */
float cpu_judge_value(cpu_judged *judged, int64_t token);

/* Whether a token stays, whose value is exact. */
gumbel_token_verdict cpu_judge(cpu_judged *judged, int64_t token, float value);

/* A value below which all tokens are known to be removed. */
float cpu_judge_floor(const cpu_judged *judged);

/* Settle row b, a cpu_screen_cut: draws whose winner is removed are drawn again. */
int cpu_screen_cut_row(cpu_screen *screen, int64_t b, int32_t thread);

#endif
