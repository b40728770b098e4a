/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "chi_squared.h"

#include <math.h>

/* Both expansions need about sqrt(a) terms near x = a; 10^7 terms serve a up to 10^12. */
enum { MOST_TERMS = 10000000 };

/* P(a, x) = x^a e^-x / Gamma(a + 1) * sum of x^n / ((a + 1) .. (a + n)), for x < a + 1. */
static double lower_by_series(double a, double x, double front)
{
    double term = 1.0 / a;
    double sum = term;

    for (int n = 1; n < MOST_TERMS && term > sum * 1e-16; n++) {
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

    for (int n = 1; n < MOST_TERMS; n++) {
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

/* One cell's share of the statistic. */
static double cell_term(double expected, double observed)
{
    return (observed - expected) * (observed - expected) / expected;
}

struct chi_squared chi_squared_test(const double *probability, const double *observed,
                                    int64_t cells, double draws)
{
    struct chi_squared result = {.degrees = -1};
    double pooled_expected = 0, pooled_observed = 0;
    double least_expected = INFINITY, least_observed = 0;

    for (int64_t i = 0; i < cells; i++) {
        const double expected = draws * probability[i];

        if (expected < 5) {
            pooled_expected += expected;
            pooled_observed += observed[i];
            continue;
        }
        if (expected < least_expected) {
            least_expected = expected;
            least_observed = observed[i];
        }
        result.statistic += cell_term(expected, observed[i]);
        result.tested_mass += probability[i];
        result.degrees++;
    }
    if (pooled_expected >= 5) {
        result.statistic += cell_term(pooled_expected, pooled_observed);
        result.degrees++;
    } else if (pooled_expected > 0 && result.degrees >= 0) {
        result.statistic -= cell_term(least_expected, least_observed);
        result.statistic +=
            cell_term(least_expected + pooled_expected, least_observed + pooled_observed);
    } else if (pooled_observed > 0) {
        result.statistic = INFINITY;
    }
    if (isinf(result.statistic)) {
        result.p_value = 0;
    } else if (result.degrees < 1) {
        result.p_value = 1;
    } else {
        result.p_value = upper_gamma(0.5 * (double)result.degrees, 0.5 * result.statistic);
    }
    return result;
}
