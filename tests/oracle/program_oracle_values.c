/* SPDX-License-Identifier: Apache-2.0 */
#include "program_oracle_parts.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void oracle_smooth_values(const oracle_program *p, oracle_tokens *t)
{
    const oracle_token top = t->list[0];
    const double k = (3 - p->smoothing_curve) / 2 * p->smoothing_factor,
                 s = (p->smoothing_curve - 1) / 2 * p->smoothing_factor;
    for (int64_t i = oracle_level_end(t, 0); i < t->count; i++) {
        oracle_token *at = &t->list[i];
        const double d = top.v - at->v, square = k * d * d, cube = s * d * d * d;
        const double own = at->bound + top.bound, v = top.v - square - cube;
        at->bound = top.bound + own * (2 * k * d + 3 * s * d * d + own * (k + 3 * s * d)) +
                    ORACLE_U * (5 * square + 7 * cube + fabs(top.v - square) + fabs(v)) + 0x1p-148;
        at->v = v < -(double)FLT_MAX ? -INFINITY : v;
    }
    oracle_settle_tokens(t);
}

void oracle_adapt_values(const oracle_program *p, oracle_tokens *t)
{
    const oracle_sums s = oracle_sum_tokens(t);
    const oracle_token top = t->list[0];
    for (int64_t i = 0; i < t->count; i++) {
        oracle_token *at = &t->list[i];
        double error;
        const double mass = oracle_mass(at, &top, &error), probability = mass / s.mass;
        /* exp() is clamped to e^-87, and the constant 1 / 0.3 has two roundings. */
        error = (error + 0x1p-125) / s.mass + probability * (s.mass_error / s.mass + 4 * ORACLE_U);
        const double d = fabs(probability - p->adaptive_target) / 0.3, lowered = d * d / (1 + d);
        error = error / 0.3 + 5 * ORACLE_U * d;
        at->v = 5 - 10 * lowered;
        at->bound = 10 * error * ((d * d + 2 * d) / ((1 + d) * (1 + d)) + error) +
                    ORACLE_U * (50 * lowered + fabs(at->v));
    }
    qsort(t->list, (size_t)t->count, sizeof *t->list, oracle_compare_tokens);
}

/* T, or the temperature that follows from the entropy, with an error bound. */
static double find_temperature(const oracle_program *p, const oracle_tokens *t, double *error)
{
    *error = 0;
    if (p->temperature_range == 0 || t->count == 1)
        return p->temperature;
    const oracle_sums s = oracle_sum_tokens(t);
    const double low = fmax(0, p->temperature - p->temperature_range),
                 high = p->temperature + p->temperature_range, most = log((double)t->count);
    const double x = p->temperature_exponent, ratio = s.entropy / most;
    const double spread = s.entropy_error / most + 4 * ORACLE_U * ratio;
    const double power = pow(fmin(ratio, 1), x), above = pow(fmin(ratio + spread, 1), x),
                 below = pow(fmax(ratio - spread, 0), x);
    const double rounding = ORACLE_U * power * (8 + 4 * x * fabs(log(fmax(ratio, 1e-300)))) + 1e-37;
    const double result = low + (high - low) * power;
    *error = (high - low) * (fmax(above - power, power - below) + rounding) + 4 * ORACLE_U * high;
    return result;
}

void oracle_scale_values(const oracle_program *p, oracle_tokens *t, oracle_path *path)
{
    double error;
    const double temperature = find_temperature(p, t, &error);
    const double inverse = fmin(1 / temperature, 0x1p100);
    const double factor = error == 0 ? (double)fminf(1.0f / (float)temperature, 0x1p100f) : inverse;
    if (error > 0.01 * temperature)
        path->undecided = 1;
    const double relative = error == 0 ? 0 : 1.1 * error / temperature + 2 * ORACLE_U;
    int64_t x = 0; /* the token of XTC's x, if it excludes any */
    while (x < t->count && t->list[x].excluded)
        x++;
    for (int64_t i = 0; i < t->count; i++) {
        oracle_token *at = &t->list[i];
        const double product = at->v * factor;
        if (error == 0 && at->bound == 0) {
            at->v = (double)(float)product;
        } else {
            at->v = fabs(product) > (double)FLT_MAX ? copysign(INFINITY, product) : product;
            at->bound = at->bound * factor * (1 + relative) +
                        fabs(product) * (relative + ORACLE_U) + 0x1p-149;
        }
    }
    for (int64_t i = 0; i < x && x < t->count; i++)
        if (t->list[i].v == t->list[x].v && t->list[i].level != t->list[x].level)
            path->undecided = 1; /* equal only after rounding */
    oracle_settle_tokens(t);
}

/* ----------------------------------------------------------------------------------- XTC ---- */

void oracle_find_top_choices(const oracle_program *p, oracle_tokens *t, oracle_path *path)
{
    const oracle_sums s = oracle_sum_tokens(t);
    const double log_threshold = log(p->xtc_threshold);
    const int64_t reach = oracle_count_from(
        t, -(s.log_mass + log_threshold), s.log_mass_error + oracle_log_error(log_threshold), path);
    if (reach < 2)
        return;
    const int64_t end = p->exact ? reach - 1 : oracle_level_start(t, reach - 1);
    if (end > 0 && t->list[end - 1].level != t->list[end].level &&
        oracle_may_be_equal(&t->list[end - 1], &t->list[end]))
        path->undecided = 1;
    for (int64_t i = 0; i < end; i++)
        t->list[i].excluded = 1;
}

/* ln(sum exp(v)) of the tokens [first, end), with its error. */
static double sum_range(const oracle_tokens *t, int64_t first, int64_t end, double *error)
{
    double mass = 0, spoilt = 0, one;
    for (int64_t i = first; i < end; i++) {
        mass += oracle_mass(&t->list[i], &t->list[first], &one);
        spoilt += one;
    }
    *error = spoilt / mass + t->list[first].bound;
    return t->list[first].v + log(mass);
}

void oracle_exclude_top_choices(const oracle_program *p, int64_t first_token, oracle_tokens *t)
{
    int64_t end = 0;
    double error, other;
    while (end < t->count && t->list[end].excluded)
        end++;
    if (end == 0 || t->count - end < p->min_keep)
        return;
    for (int64_t k = 0; k < p->xtc_keep_count; k++)
        for (int64_t i = 0; i < end; i++)
            if (t->list[i].id + first_token == p->xtc_keep[k])
                return;
    const double log_odds = sum_range(t, 0, end, &error) - sum_range(t, end, t->count, &other);
    const double log_ratio = log_odds + log(p->xtc_probability);
    const double more = log_ratio > 700 ? log_ratio : log1p(exp(log_ratio));
    const double shift = log1p(-p->xtc_probability) - more;
    error +=
        other + 4 * ORACLE_U * (1 + fabs(log_odds) + fabs(shift)) + ORACLE_U * fabs(t->list[0].v);
    if (p->xtc_probability == 1) {
        memmove(t->list, t->list + end, (size_t)(t->count - end) * sizeof *t->list);
        t->count -= end;
        return;
    }
    for (int64_t i = 0; i < end; i++) {
        t->list[i].v += shift;
        t->list[i].bound += error + ORACLE_U * fabs(t->list[i].v);
    }
    qsort(t->list, (size_t)t->count, sizeof *t->list, oracle_compare_tokens);
}
