/* SPDX-License-Identifier: Apache-2.0
 *
 * Chi-squared tests and their p-values.
 */
#ifndef TESTS_STATISTICS_H
#define TESTS_STATISTICS_H

#include <stdint.h>

/* A chi-squared statistic; statistics of several tables add up. */
typedef struct chi_squared {
    double statistic;
    double degrees; /* of freedom */
    double mass;    /* probability of the cells that were not joined, in the last table added */
} chi_squared;

/* P(chi-squared with `degrees` of freedom > statistic). */
double chi_squared_p(double statistic, double degrees);

/* The p-value of a Kolmogorov-Smirnov test of `count` values against the uniform distribution;
 * sorts them. */
double uniform_p(double *values, int64_t count);

/* Adds a table of `cells` counts of `total` draws against `probability`, which sums to 1. Cells
 * with an expected count below 5 are joined, in order of falling probability, until they reach
 * 5. */
void chi_squared_add(chi_squared *sum, const int64_t *counts, const double *probability,
                     int64_t cells, int64_t total);

/* Add a test of independence: counts [rows, cols] against the product of the given marginals. */
void chi_squared_add_joint(chi_squared *sum, const int64_t *counts, const double *row_probability,
                           int64_t rows, const double *col_probability, int64_t cols,
                           int64_t total);

/* softmax of `count` logits over T, in double. */
void softmax(const double *logits, int64_t count, double temperature, double *probability);

/* Group `cells` tokens into at most `groups` classes of about equal mass, by falling probability:
 * class of each token into `class_of`; classes are numbered from 0. Returns how many. */
int64_t group_by_mass(const double *probability, int64_t cells, int64_t groups, int64_t *class_of);

#endif
