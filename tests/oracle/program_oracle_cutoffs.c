/* SPDX-License-Identifier: Apache-2.0 */
#include "program_oracle_parts.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* The tokens whose values are surely and perhaps at least m - distance. */
typedef struct cutoff_range {
    int64_t surely, perhaps;
} cutoff_range;

static cutoff_range find_range(const oracle_tokens *t, double distance, double error)
{
    const oracle_token *top = &t->list[0];
    const double threshold = top->v - distance;
    cutoff_range range = {0, 0};
    error += top->bound + 2 * ORACLE_U * (fabs(threshold) + fabs(distance));
    for (int64_t i = 0; i < t->count; i++) {
        const double above = t->list[i].v - threshold, margin = error + t->list[i].bound;
        if (above > margin || threshold < -(double)FLT_MAX)
            range.surely = oracle_level_end(t, i);
        if (above >= -margin)
            range.perhaps = oracle_level_end(t, i);
    }
    return range;
}

int64_t oracle_count_from(const oracle_tokens *t, double distance, double error, oracle_path *path)
{
    oracle_tokens copy = *t;
    const cutoff_range range = find_range(t, distance, error);
    oracle_keep_prefix(&copy, range.surely, range.perhaps, 0, path);
    return copy.count;
}

/* Keeps values of at least m - distance, the largest value and min_keep tokens. */
static void keep_from(oracle_tokens *t, double distance, double error, int64_t min_keep,
                      oracle_path *path)
{
    const int64_t least = min_keep < t->count ? min_keep : t->count;
    const int64_t fewest = oracle_level_end(t, least - 1),
                  most = oracle_end_of_equals(t, least - 1);
    cutoff_range range = find_range(t, distance, error);
    if (range.surely < fewest)
        range.surely = fewest;
    if (range.surely == fewest && range.perhaps < most)
        range.perhaps = most;
    oracle_keep_prefix(t, range.surely, range.perhaps, 0, path);
}

void oracle_keep_threshold(const oracle_program *p, int rule, oracle_tokens *t, oracle_path *path)
{
    const oracle_sums s = oracle_sum_tokens(t);
    const double log_eta = p->eta > 0 ? log(p->eta) : 0;
    double distance, error = s.log_mass_error;
    switch (rule) {
    case GUMBEL_PROGRAM_MIN_P:
        distance = -log(p->min_p);
        error = oracle_log_error(distance);
        break;
    case GUMBEL_PROGRAM_TOP_N_SIGMA:
        distance = p->top_n_sigma * s.sigma;
        error = p->top_n_sigma * s.sigma_error;
        break;
    case GUMBEL_PROGRAM_EPSILON:
        distance = -(s.log_mass + log(p->epsilon));
        error += oracle_log_error(log(p->epsilon));
        break;
    case GUMBEL_PROGRAM_ETA:
        distance = -(s.log_mass + fmin(log_eta, log_eta / 2 - s.entropy));
        error += s.entropy_error + oracle_log_error(log_eta) +
                 2 * ORACLE_U * (fabs(log_eta) + s.entropy);
        break;
    case GUMBEL_PROGRAM_TOP_A:
        distance = s.log_mass - log(p->top_a);
        error += oracle_log_error(log(p->top_a));
        break;
    case GUMBEL_PROGRAM_P_LESS:
        distance = s.log_mass - s.log_squared;
        error += s.log_squared_error;
        break;
    default:
        distance = p->surprise * log(2) - s.log_mass;
        error += 4 * ORACLE_U * p->surprise;
    }
    keep_from(t, fmax(distance, 0), error, p->min_keep, path);
}

void oracle_keep_top_k(const oracle_program *p, oracle_tokens *t, oracle_path *path)
{
    const int64_t k = p->top_k;
    if (k >= t->count)
        return;
    if (p->exact)
        oracle_keep_prefix(t, k, k, 1, path);
    else
        oracle_keep_prefix(t, oracle_level_end(t, k - 1), oracle_end_of_equals(t, k - 1), 0, path);
}

void oracle_keep_top_p(const oracle_program *p, oracle_tokens *t, oracle_path *path)
{
    const oracle_sums s = oracle_sum_tokens(t);
    const int64_t least = p->min_keep < t->count ? p->min_keep : t->count;
    int64_t surely = 0, perhaps = 0;
    double above = 0, above_error = 0, error;
    for (int64_t i = 0, end; i < t->count; i = end) {
        end = p->exact ? i + 1 : oracle_level_end(t, i);
        const double margin = above_error + p->top_p * s.mass_error + 0x1p-61;
        if (above < p->top_p * s.mass - margin || i == 0)
            surely = end;
        if (above < p->top_p * s.mass + margin)
            perhaps = end;
        for (int64_t j = i; j < end; j++) {
            above += oracle_mass(&t->list[j], &t->list[0], &error);
            above_error += error;
        }
    }
    if (surely < least)
        surely = p->exact ? least : oracle_level_end(t, least - 1);
    if (perhaps < surely)
        perhaps = surely;
    if (!p->exact && surely == oracle_level_end(t, least - 1) &&
        perhaps < oracle_end_of_equals(t, least - 1))
        perhaps = oracle_end_of_equals(t, least - 1);
    oracle_keep_prefix(t, surely, perhaps, p->exact, path);
}

/* ------------------------------------------------------------------------------- typical ---- */

/* A level by its distance to the entropy. */
typedef struct typical_level {
    int64_t start, end;
    double distance, error, mass;
} typical_level;

static int compare_levels(const void *a, const void *b)
{
    const typical_level *x = a, *y = b;
    return x->distance < y->distance ? -1 : x->distance > y->distance;
}

/* 1 if a level surely stays, 0 if it surely goes, else -1. The weights of the levels that are
 * surely or perhaps closer are `low` and `high`. */
static int compare_weight(double low, double high, double needed, double margin)
{
    return high < needed - margin ? 1 : low >= needed + margin ? 0 : -1;
}

static int compare_level(const oracle_program *p, const typical_level *levels, int64_t count,
                         int64_t at, const oracle_sums *s)
{
    double low = 0, high = 0, fewest = 0, most = 0;
    for (int64_t i = 0; i < count; i++) {
        const double gap = levels[at].distance - levels[i].distance;
        const double error = levels[at].error + levels[i].error;
        const double tokens = (double)(levels[i].end - levels[i].start);
        if (i == at || gap < -error)
            continue;
        high += levels[i].mass;
        most += tokens;
        low += gap > error ? levels[i].mass : 0;
        fewest += gap > error ? tokens : 0;
    }
    const int by_mass = compare_weight(low, high, p->typical_p * s->mass, 2 * s->mass_error);
    const int by_count = compare_weight(fewest, most, (double)p->min_keep, 0);
    return by_mass == 1 || by_count == 1 ? 1 : by_mass == 0 && by_count == 0 ? 0 : -1;
}

void oracle_keep_typical(const oracle_program *p, oracle_tokens *t, oracle_path *path)
{
    const oracle_sums s = oracle_sum_tokens(t);
    typical_level *levels = malloc((size_t)t->count * sizeof *levels);
    int64_t count = 0, kept = 0;
    double unused;
    for (int64_t i = 0; i < t->count; i = levels[count++].end) {
        const double below = t->list[0].v - t->list[i].v, own = s.log_mass + below;
        levels[count] = (typical_level){i, oracle_level_end(t, i), fabs(own - s.entropy),
                                        s.log_mass_error + s.entropy_error + t->list[i].bound +
                                            t->list[0].bound + 4 * ORACLE_U * (own + s.entropy),
                                        oracle_mass(&t->list[i], &t->list[0], &unused)};
        levels[count].mass *= (double)(levels[count].end - i);
    }
    qsort(levels, (size_t)count, sizeof *levels, compare_levels);
    /* The mass and number of closer levels only grow, so that levels after four that go do too. */
    for (int64_t at = 0, gone = 0; at < count; at++) {
        int stays = gone > 3 ? 0 : compare_level(p, levels, count, at, &s);
        gone = stays == 0 ? gone + 1 : 0;
        if (stays < 0)
            stays = oracle_choose_result(path, 2);
        for (int64_t i = levels[at].start; i < levels[at].end; i++)
            t->list[i].excluded = !stays;
    }
    for (int64_t i = 0; i < t->count; i++) {
        if (!t->list[i].excluded)
            t->list[kept++] = t->list[i];
        t->list[i].excluded = 0;
    }
    t->count = kept > 0 ? kept : t->count;
    path->undecided |= kept == 0;
    free(levels);
}
