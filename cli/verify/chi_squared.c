/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "chi_squared.h"

#include <math.h>
#include <stdbool.h>

/* Both expansions need about sqrt(a) terms near x = a: 10^7 terms suffice for a up to 10^12. */
enum { TERMS_MAX = 10000000 };

/* P(a, x) = x^a e^-x / Gamma(a + 1) * sum of x^n / ((a + 1) .. (a + n)), for x < a + 1. */
static double lower_by_series(double a, double x, double front)
{
    double term = 1.0 / a;
    double sum = term;

    for (int n = 1; n < TERMS_MAX && term > sum * 1e-16; n++) {
        term *= x / (a + n);
        sum += term;
    }
    return front * sum;
}

/* Q(a, x) by its continued fraction, evaluated by Lentz's method, for x >= a + 1. */
static double upper_by_fraction(double a, double x, double front)
{
    const double tiny = 1e-300;
    double b = x + 1.0 - a;
    double c = 1.0 / tiny;
    double d = 1.0 / b;
    double value = d;

    for (int n = 1; n < TERMS_MAX; n++) {
        const double numerator = -n * (n - a);
        double factor = 0;

        b += 2.0;
        d = numerator * d + b;
        d = 1.0 / (fabs(d) < tiny ? tiny : d);
        c = b + numerator / c;
        c = fabs(c) < tiny ? tiny : c;
        factor = d * c;
        value *= factor;
        if (fabs(factor - 1.0) < 1e-15) {
            break;
        }
    }
    return front * value;
}

double upper_gamma(double a, double x)
{
    double front = 0;
    int sign = 0;

    if (x <= 0) {
        return 1.0;
    }
    front = exp(a * log(x) - x - lgamma_r(a, &sign));
    return x < a + 1.0 ? 1.0 - lower_by_series(a, x, front) : upper_by_fraction(a, x, front);
}

static const double least_expected = 5;

/* Deviance of a Poisson count: 2 * log(likelihood with mean `observed` / likelihood with mean
 * `expected`). */
static double compute_deviance(double expected, double observed)
{
    const double logarithm = observed > 0 ? observed * log(observed / expected) : 0;

    return 2 * (logarithm - (observed - expected));
}

/* The mean of the deviance: 1.05 for an expected count of 5, towards 1 for more. The difference
 * from 1 matters for thousands of cells. */
static double find_mean_deviance(double expected)
{
    double mean = 0;
    double probability = exp(-expected);

    if (expected > 30) {
        return 1 + 1 / (6 * expected) + 1 / (6 * expected * expected);
    }
    for (int count = 0; count < 120; count++) {
        mean += probability * compute_deviance(expected, count);
        probability *= expected / (count + 1);
    }
    return mean;
}

/* One cell's term of the statistic. */
static double compute_cell_term(double expected, double observed)
{
    return compute_deviance(expected, observed) / find_mean_deviance(expected);
}

/* A cell, or several pooled cells. */
struct cell {
    double expected, observed;
};

struct chi_squared chi_squared_test(const double *probability, const double *observed,
                                    int64_t cells, double draws)
{
    struct chi_squared result = {.degrees = -1};
    struct cell pooled = {0, 0};
    struct cell least = {INFINITY, 0};
    bool impossible = false;

    for (int64_t i = 0; i < cells; i++) {
        const struct cell cell = {draws * probability[i], observed[i]};

        impossible = impossible || (probability[i] <= 0 && observed[i] > 0);
        if (cell.expected < least_expected) {
            pooled.expected += cell.expected;
            pooled.observed += cell.observed;
            continue;
        }
        least = cell.expected < least.expected ? cell : least;
        result.statistic += compute_cell_term(cell.expected, cell.observed);
        result.tested_mass += probability[i];
        result.degrees++;
    }
    if (pooled.expected >= least_expected) {
        result.statistic += compute_cell_term(pooled.expected, pooled.observed);
        result.degrees++;
    } else if (pooled.expected > 0 && result.degrees >= 0) {
        result.statistic -= compute_cell_term(least.expected, least.observed);
        result.statistic +=
            compute_cell_term(least.expected + pooled.expected, least.observed + pooled.observed);
    }
    if (impossible) {
        result.statistic = INFINITY;
        result.p_value = 0;
    } else if (result.degrees < 1) {
        result = (struct chi_squared){.p_value = 1, .tested_mass = result.tested_mass};
    } else {
        result.p_value = upper_gamma(0.5 * (double)result.degrees, 0.5 * result.statistic);
    }
    result.degrees = result.degrees > 0 ? result.degrees : 0;
    return result;
}
