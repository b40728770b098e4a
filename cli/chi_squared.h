/* SPDX-License-Identifier: Apache-2.0
 *
 * Pearson's chi-squared test of counts against probabilities.
 */
#ifndef GUMBEL_CLI_CHI_SQUARED_H
#define GUMBEL_CLI_CHI_SQUARED_H

#include <stdint.h>

struct chi_squared {
    double statistic;
    int64_t degrees;    /* cells - 1 */
    double p_value;     /* probability of a statistic at least as large if the counts are right */
    double tested_mass; /* probability of the cells that stand alone */
};

/* Test observed[0..cells), which sum to `draws`, against probability[0..cells), which sum to 1.
 * Cells whose expected count is under 5 are pooled into one; if that one too expects less than 5,
 * it joins the smallest of the others. A draw of what has probability 0 alone gives p = 0. */
struct chi_squared chi_squared_test(const double *probability, const double *observed,
                                    int64_t cells, double draws);

/* The regularised upper incomplete gamma function Q(a, x), a > 0, x >= 0: 1 at x = 0, falling to 0.
 * Relative error about 1e-12 where Q is not below 1e-300. */
double upper_gamma(double a, double x);

#endif
