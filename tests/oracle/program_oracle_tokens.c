/* SPDX-License-Identifier: Apache-2.0 */
#include "program_oracle_parts.h"

#include <math.h>
#include <stdlib.h>

int oracle_compare_tokens(const void *a, const void *b)
{
    const oracle_token *x = a, *y = b;
    if (x->v != y->v)
        return x->v > y->v ? -1 : 1;
    if (x->level != y->level && (x->bound > 0 || y->bound > 0))
        return x->level < y->level ? -1 : 1; /* not known to be equal */
    return x->id < y->id ? -1 : 1;
}

/* Removes tokens of value -inf, which are last; sets the row's status; joins equal exact values to
 * one level. */
void oracle_settle_tokens(oracle_tokens *t)
{
    qsort(t->list, (size_t)t->count, sizeof *t->list, oracle_compare_tokens);
    while (t->count > 0 && t->list[t->count - 1].v == -INFINITY)
        t->count--;
    if (t->count == 0)
        t->status = GUMBEL_ROW_EMPTY;
    else if (t->list[0].v == INFINITY)
        t->status = GUMBEL_ROW_INFINITE;
    for (int64_t i = 1; i < t->count; i++)
        if (t->list[i].v == t->list[i - 1].v && t->list[i].bound == 0 && t->list[i - 1].bound == 0)
            t->list[i].level = t->list[i - 1].level;
}

/* The end of the level of token i. */
int64_t oracle_level_end(const oracle_tokens *t, int64_t i)
{
    const int64_t level = t->list[i].level;
    while (i < t->count && t->list[i].level == level)
        i++;
    return i;
}

int64_t oracle_level_start(const oracle_tokens *t, int64_t i)
{
    while (i > 0 && t->list[i - 1].level == t->list[i].level)
        i--;
    return i;
}

/* Whether two values may be one float32. */
int oracle_may_be_equal(const oracle_token *a, const oracle_token *b)
{
    return a->level == b->level || fabs(a->v - b->v) <= a->bound + b->bound;
}

/* The first token that certainly has a smaller value than token i. */
int64_t oracle_end_of_equals(const oracle_tokens *t, int64_t i)
{
    int64_t end = oracle_level_end(t, i);
    while (end < t->count && oracle_may_be_equal(&t->list[i], &t->list[end]))
        end = oracle_level_end(t, end);
    return end;
}

/* Keeps a prefix of at least `surely` and at most `perhaps` tokens, of whole levels unless
 * `by_token`. */
void oracle_keep_prefix(oracle_tokens *t, int64_t surely, int64_t perhaps, int by_token,
                        oracle_path *path)
{
    int64_t results = 1, kept = surely;
    for (int64_t i = surely; i < perhaps; i = by_token ? i + 1 : oracle_level_end(t, i))
        results++;
    for (int taken = oracle_choose_result(path, results); taken > 0; taken--)
        kept = by_token ? kept + 1 : oracle_level_end(t, kept);
    if (kept > 0 && kept < t->count) {
        /* Levels that may be equal go together, or the ids of all their tokens decide. */
        const int64_t start = oracle_level_start(t, kept), end = oracle_level_end(t, kept);
        if ((start > 0 && oracle_may_be_equal(&t->list[start - 1], &t->list[start])) ||
            (end < t->count && start < kept && oracle_may_be_equal(&t->list[start], &t->list[end])))
            path->undecided = 1;
    }
    t->count = kept;
}

/* ---------------------------------------------------------------------------------- sums ---- */

/* exp(v - m) of a token, and how far the library's mass may be from it. */
double oracle_mass(const oracle_token *token, const oracle_token *top, double *error)
{
    const double distance = top->v - token->v, e = exp(-distance);
    *error = 0x1p-61;
    if (e > 0)
        *error += e * (ORACLE_U * (4 + distance) + token->bound + top->bound);
    return e;
}

double oracle_log_error(double x) { return 2 * ORACLE_U * fmax(1, fabs(x)); }

static void add_deviation(const oracle_tokens *t, oracle_sums *s)
{
    const double n = (double)t->count, most = 0x1p15;
    double mean = 0, squares = 0, bound = 0;
    for (int64_t i = 0; i < t->count; i++)
        mean += fmin(fmax(t->list[i].v, -most), most) / n;
    for (int64_t i = 0; i < t->count; i++) {
        const double d = fmin(fmax(t->list[i].v, -most), most) - mean;
        squares += d * d;
        bound = fmax(bound, t->list[i].bound);
    }
    s->sigma = sqrt(squares / n);
    s->sigma_error = 0x1p-17 + fmin(bound, 0x1p16) + 2 * ORACLE_U * s->sigma + 1e-12 * fabs(mean);
}

oracle_sums oracle_sum_tokens(const oracle_tokens *t)
{
    oracle_sums s = {0};
    const oracle_token *top = &t->list[0];
    double distances = 0, distance_error = 0, squared = 0, squared_error = 0, error;
    for (int64_t i = 0; i < t->count; i++) {
        const double d = top->v - t->list[i].v, e = oracle_mass(&t->list[i], top, &error);
        s.mass += e;
        s.mass_error += error;
        squared += e * e;
        squared_error += 2 * e * error + e * e * ORACLE_U * (4 + 2 * fmin(d, 400)) + 0x1p-61;
        if (e > 0) {
            distances += e * d;
            distance_error += e * (0x1p-17 + ORACLE_U * d + t->list[i].bound + top->bound);
        }
    }
    const double mean = distances / s.mass;
    for (int64_t i = 0; i < t->count; i++) {
        const double d = top->v - t->list[i].v;
        oracle_mass(&t->list[i], top, &error);
        distance_error += error * fabs(fmin(d, 60) - mean);
    }
    s.log_mass = log(s.mass);
    s.log_mass_error = s.mass_error / s.mass + 2 * ORACLE_U + oracle_log_error(s.log_mass);
    s.entropy = s.log_mass + mean;
    s.entropy_error =
        s.log_mass_error + distance_error / s.mass + 2 * ORACLE_U * (mean + s.entropy);
    s.log_squared = log(squared);
    s.log_squared_error = squared_error / squared + 2 * ORACLE_U + oracle_log_error(s.log_squared);
    add_deviation(t, &s);
    return s;
}
