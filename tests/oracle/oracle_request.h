/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle of requests: transforms, truncation and every output of a row as plain loops and a
 * sort in double, written only from gumbel.h and docs/maths.md. The oracle shares only the public
 * header with the library.
 *
 * A row is computed in steps, so that compare_with_oracle() can insert the library's own y, which
 * is inexact after a soft-cap:
 *
 *     logits ──oracle_edit_row()──► l, y ──oracle_temper_row()──► z ──oracle_truncate_row()──► kept
 *
 * Error model, u = 2^-24.
 * - y and z are float32 numbers. Every operation that makes them is +, -, * or / of two float32
 *   numbers, rounded once; done in double and rounded to float32 it gives the same bits (53 >= 2 *
 *   24 + 2). Both are exact, except after tanh: 8 u of the value, in `bound`.
 * - exp(z - m): u (4 + |z - m|) of the value and 2^-61, and 0 if z = m. A cutoff by mass, and
 *   the cutoff c of min_p with u (3 |ln min_p| + |c|), may be anywhere within such bounds: `fewest`
 *   and `most` are the kept counts at both bounds. If they differ, the row is near a cutoff.
 * - a log-normaliser: 2 ulp of max(1, |lse|); a log-probability: that and an ulp of itself
 */
#ifndef TESTS_ORACLE_REQUEST_H
#define TESTS_ORACLE_REQUEST_H

#include <gumbel/gumbel.h>

typedef struct oracle_row {
    int64_t first_token;
    int64_t count;  /* V */
    double *l;      /* [V] the logits; -inf for padding */
    double *y;      /* [V] after the transforms; -inf for masked and banned tokens, too */
    double *bound;  /* [V] how far the library's y may be from it: 0 without a soft-cap */
    double *z;      /* [V] after the temperature */
    int64_t *order; /* [V] tokens, from 0, that have z > -inf: larger key first, then lower id; the
                       key is the value that truncation compares, y or z */
    int64_t alive;  /* their number */
    int64_t fewest, most; /* smallest and largest number of kept tokens */
    int64_t kept;         /* number of kept tokens */
    int greedy;
    int32_t status; /* a gumbel_row_status */
} oracle_row;

oracle_row *oracle_row_make(int64_t count);
void oracle_row_free(oracle_row *row);

/* Fill l, y and bound from row b of a request. */
void oracle_edit_row(const gumbel_logits *input, const gumbel_sampling *sampling, int64_t b,
                     oracle_row *row);

/* Fill z, greedy and status from l and y. */
void oracle_temper_row(const gumbel_sampling *sampling, int64_t b, oracle_row *row);

/* Fills order, fewest, most and kept. Returns 1 if the row is near a cutoff. */
int oracle_truncate_row(const gumbel_sampling *sampling, int64_t b, oracle_row *row);

/* The following functions use the first `kept` tokens of `order`; ids are global. */

/* ln(sum exp(z)) over the kept tokens, or of exp(l) over all tokens, masked ones included: NaN if
 * one of them is NaN or +inf. */
double oracle_row_lse(const oracle_row *row, gumbel_distribution of);

/* The score of a token with noise g; the best token with noise [V], from the row's token 0 on,
 * which greedy rows ignore. */
float oracle_row_score(const oracle_row *row, int64_t token, float g);
int32_t oracle_row_draw(const oracle_row *row, const float *noise);

/* 1 + how many tokens have a larger z. */
int32_t oracle_row_rank(const oracle_row *row, int32_t token);

/* Whether the token is kept. */
int oracle_row_keeps(const oracle_row *row, int32_t token);

/* The n tokens with the largest z, then lower id; -1 after the last. */
void oracle_row_top(const oracle_row *row, int32_t n, int32_t *ids);

#endif
