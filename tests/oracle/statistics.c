/* SPDX-License-Identifier: Apache-2.0 */
#include "statistics.h"

#include "inputs.h"

#include <math.h>
#include <stdlib.h>

/* Q(a, x), the regularised upper incomplete gamma function: the series of P where x < a + 1, else
 * the continued fraction by Lentz's method (Numerical Recipes, 6.2). */
static double upper_gamma(double a, double x)
{
    double front = exp(a * log(x) - x - lgamma(a));
    if (x < a + 1) {
        double term = 1 / a, sum = term;
        for (double n = a + 1; term > sum * 1e-16; n++) {
            term *= x / n;
            sum += term;
        }
        return 1 - front * sum;
    }
    double b = x + 1 - a, c = 1e300, d = 1 / b, fraction = d;
    for (int i = 1; i < 100000; i++) {
        double step = -i * (i - a);
        b += 2;
        d = 1 / (step * d + b);
        c = b + step / c;
        fraction *= c * d;
        if (fabs(c * d - 1) < 1e-15)
            break;
    }
    return front * fraction;
}

double chi_squared_p(double statistic, double degrees)
{
    return statistic > 0 ? upper_gamma(degrees / 2, statistic / 2) : 1;
}

static int compare_rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The tail of the distribution by Stephens (1970), accurate from a few values on. */
double uniform_p(double *values, int64_t count)
{
    double distance = 0, n = (double)count, sum = 0;
    qsort(values, (size_t)count, sizeof *values, compare_rising);
    for (int64_t i = 0; i < count; i++)
        distance = fmax(distance, fmax(values[i] - (double)i / n, (double)(i + 1) / n - values[i]));
    double scaled = (sqrt(n) + 0.12 + 0.11 / sqrt(n)) * distance;
    for (int k = 1; k < 100; k++)
        sum += (k % 2 ? 2 : -2) * exp(-2.0 * k * k * scaled * scaled);
    return fmin(1, fmax(0, sum));
}

/* Cells that are joined until their expected count is large enough. */
typedef struct joined {
    double expected, last_expected, last_counted, statistic;
    int64_t counted, cells;
} joined;

static void join_cell(joined *j, int64_t count, double expected)
{
    j->counted += count;
    j->expected += expected;
    if (j->expected < 5)
        return;
    j->statistic += pow((double)j->counted - j->expected, 2) / j->expected;
    j->last_expected = j->expected;
    j->last_counted = (double)j->counted;
    j->cells++;
    j->counted = 0;
    j->expected = 0;
}

/* Adds the remaining counts to the last cell. */
static void join_rest(joined *j)
{
    if (j->cells == 0)
        return;
    double counted = j->last_counted + (double)j->counted,
           expected = j->last_expected + j->expected;
    j->statistic -= pow(j->last_counted - j->last_expected, 2) / j->last_expected;
    j->statistic += pow(counted - expected, 2) / expected;
}

typedef struct ranked {
    double probability;
    int64_t token;
} ranked;

static int compare_falling(const void *a, const void *b)
{
    double x = ((const ranked *)a)->probability, y = ((const ranked *)b)->probability;
    return (x < y) - (x > y);
}

/* Tokens by falling probability; free it. */
static ranked *rank_tokens(const double *probability, int64_t cells)
{
    ranked *order = make_zeroed((size_t)cells, sizeof *order);
    for (int64_t i = 0; i < cells; i++)
        order[i] = (ranked){probability[i], i};
    qsort(order, (size_t)cells, sizeof *order, compare_falling);
    return order;
}

void chi_squared_add(chi_squared *sum, const int64_t *counts, const double *probability,
                     int64_t cells, int64_t total)
{
    joined j = {0};
    ranked *order = rank_tokens(probability, cells);
    sum->mass = 0;
    for (int64_t i = 0; i < cells; i++) {
        double expected = order[i].probability * (double)total;
        join_cell(&j, counts[order[i].token], expected);
        sum->mass += expected >= 5 ? order[i].probability : 0;
    }
    join_rest(&j);
    sum->statistic += j.statistic;
    sum->degrees += (double)(j.cells > 1 ? j.cells - 1 : 0);
    free(order);
}

void chi_squared_add_joint(chi_squared *sum, const int64_t *counts, const double *row_probability,
                           int64_t rows, const double *col_probability, int64_t cols, int64_t total)
{
    double *product = make_zeroed((size_t)(rows * cols), sizeof *product);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            product[r * cols + c] = row_probability[r] * col_probability[c];
    chi_squared_add(sum, counts, product, rows * cols, total);
    free(product);
}

void softmax(const double *logits, int64_t count, double temperature, double *probability)
{
    double highest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++)
        highest = fmax(highest, logits[i]);
    for (int64_t i = 0; i < count; i++)
        sum += probability[i] = exp((logits[i] - highest) / temperature);
    for (int64_t i = 0; i < count; i++)
        probability[i] /= sum;
}

int64_t group_by_mass(const double *probability, int64_t cells, int64_t groups, int64_t *class_of)
{
    ranked *order = rank_tokens(probability, cells);
    int64_t group = 0;
    double mass = 0;
    for (int64_t i = 0; i < cells; i++) {
        class_of[order[i].token] = group;
        mass += order[i].probability;
        if (mass * (double)groups >= 1 && i + 1 < cells) {
            group++;
            mass = 0;
        }
    }
    free(order);
    return group + 1;
}
