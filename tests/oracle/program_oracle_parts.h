/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the oracle of programs: tokens and their levels, sums, and the rules.
 */
#ifndef TESTS_PROGRAM_ORACLE_PARTS_H
#define TESTS_PROGRAM_ORACLE_PARTS_H

#include "program_oracle.h"

#define ORACLE_U 0x1p-24 /* half an ulp of 1 */

/* The result that a walk takes of a rule with several results. */
int oracle_choose_result(oracle_path *path, int64_t results);

/* -------------------------------------------------------------------------------- tokens ---- */

/* Sorts tokens, as rounding may make values equal; removes those of value -inf, which are last;
 * sets the row's status; joins equal exact values to one level. */
void oracle_settle_tokens(oracle_tokens *t);

/* The first token of the level of token i, and the first token after the level. */
int64_t oracle_level_start(const oracle_tokens *t, int64_t i);
int64_t oracle_level_end(const oracle_tokens *t, int64_t i);

/* Whether two values may be one float32. */
int oracle_may_be_equal(const oracle_token *a, const oracle_token *b);

/* The first token that certainly has a smaller value than token i. */
int64_t oracle_end_of_equals(const oracle_tokens *t, int64_t i);

/* Keeps a prefix of at least `surely` and at most `perhaps` tokens, of whole levels unless
 * `by_token`. */
void oracle_keep_prefix(oracle_tokens *t, int64_t surely, int64_t perhaps, int by_token,
                        oracle_path *path);

int oracle_compare_tokens(const void *a, const void *b);

/* ---------------------------------------------------------------------------------- sums ---- */

/* Sums over the tokens that remain, with error bounds. */
typedef struct oracle_sums {
    double mass, log_mass, entropy, sigma, log_squared;
    double mass_error, log_mass_error, entropy_error, sigma_error, log_squared_error;
} oracle_sums;

oracle_sums oracle_sum_tokens(const oracle_tokens *t);

/* exp(v - m) of a token, and how far the library's mass may be from it. */
double oracle_mass(const oracle_token *token, const oracle_token *top, double *error);

/* The error of a float32 logarithm x. */
double oracle_log_error(double x);

/* --------------------------------------------------------------------------------- rules ---- */

void oracle_keep_threshold(const oracle_program *p, int rule, oracle_tokens *t, oracle_path *path);
void oracle_keep_top_k(const oracle_program *p, oracle_tokens *t, oracle_path *path);
void oracle_keep_top_p(const oracle_program *p, oracle_tokens *t, oracle_path *path);
void oracle_keep_typical(const oracle_program *p, oracle_tokens *t, oracle_path *path);

/* How many tokens have a value of at least m - distance; `error` is that of the distance. */
int64_t oracle_count_from(const oracle_tokens *t, double distance, double error, oracle_path *path);

void oracle_smooth_values(const oracle_program *p, oracle_tokens *t);
void oracle_adapt_values(const oracle_program *p, oracle_tokens *t);
void oracle_scale_values(const oracle_program *p, oracle_tokens *t, oracle_path *path);

/* Marks the tokens that XTC excludes, and at the end of the program excludes them. */
void oracle_find_top_choices(const oracle_program *p, oracle_tokens *t, oracle_path *path);
void oracle_exclude_top_choices(const oracle_program *p, int64_t first_token, oracle_tokens *t);

#endif
