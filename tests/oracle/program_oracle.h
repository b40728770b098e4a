/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle of programs (programs.h): sorts a row and walks its list of rules, as plain loops in
 * double, written from the public headers alone.
 *
 * Error model, u = 2^-24.
 * - A value is exact (bound 0) after TEMPERATURE without a range, which is one float32 product.
 *   Other changes of values add the rounding of each of their float32 operations to its bound.
 * - exp(v - m): u (4 + |v - m|) of the value, the bounds of v and m, and 2^-61; logarithms: 2 u
 *   max(1, |ln|). The entropy sums m - v in units of 2^-16, and sigma v in units of 2^-16, limited
 *   to 2^15 (programs.h): 2^-17 more each.
 * - A token within such bounds of a threshold is borderline: float32 may keep it or remove it.
 *
 * Tokens of equal value stay or go together, so a rule with borderline tokens has as many results
 * as there are distinct borderline values, and one more. Each walk takes one result of each such
 * rule; oracle_next_path() goes to the next combination. The library must agree with one walk in
 * every token. A walk that meets a rule with too many results, or values without a bound, is
 * undecided.
 */
#ifndef TESTS_PROGRAM_ORACLE_H
#define TESTS_PROGRAM_ORACLE_H

#include <gumbel/programs.h>

/* The program of a row and its parameters. */
typedef struct oracle_program {
    uint8_t rules[GUMBEL_PROGRAM_LENGTH];
    int exact; /* GUMBEL_TIES_EXACT */
    int64_t top_k, min_keep;
    double temperature, temperature_range, temperature_exponent;
    double min_p, top_p, typical_p, top_n_sigma, epsilon, eta, top_a, surprise;
    double xtc_probability, xtc_threshold, smoothing_factor, smoothing_curve, adaptive_target;
    const int32_t *xtc_keep; /* global ids */
    int64_t xtc_keep_count;
} oracle_program;

oracle_program oracle_read_program(const gumbel_sampling *sampling, int64_t b);

/* A token that remains. */
typedef struct oracle_token {
    int64_t id;      /* index in the row */
    double v, bound; /* the value and its error bound */
    int64_t level;   /* equal for tokens of equal value */
    int excluded;    /* by XTC */
} oracle_token;

/* The tokens that remain, by falling value, then rising id. */
typedef struct oracle_tokens {
    oracle_token *list; /* room for the tokens of the row */
    int64_t count;
    int32_t status; /* a gumbel_row_status */
} oracle_tokens;

/* Which results of borderline rules a walk takes. Zero at first. */
#define ORACLE_PATH_LENGTH 24
#define ORACLE_PATH_MOST   12 /* results of a rule */
typedef struct oracle_path {
    int taken[ORACLE_PATH_LENGTH], results[ORACLE_PATH_LENGTH];
    int depth, fixed;
    int undecided;
} oracle_path;

/* Walks the program over a row of `count` transformed logits y; `first_token` is the id of y[0]. */
void oracle_run_program(const oracle_program *program, const float *y, int64_t count,
                        int64_t first_token, oracle_path *path, oracle_tokens *tokens);

/* Sets the path to the next combination; returns 0 after the last one. */
int oracle_next_path(oracle_path *path);

#endif
