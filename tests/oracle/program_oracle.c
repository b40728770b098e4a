/* SPDX-License-Identifier: Apache-2.0 */
#include "program_oracle_parts.h"

#include "inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

oracle_program oracle_read_program(const gumbel_sampling *s, int64_t b)
{
    const gumbel_truncation *t = s->truncation;
    const gumbel_programs *q = t->programs;
    oracle_program p = {.exact = t->ties == GUMBEL_TIES_EXACT};
    int ended = 0;
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH; i++) {
        const int64_t index = row_i32(&q->program, s, b, 0);
        const uint8_t rule = q->rules[index * GUMBEL_PROGRAM_LENGTH + i];
        ended |= rule == GUMBEL_PROGRAM_END;
        p.rules[i] = ended ? GUMBEL_PROGRAM_END : rule;
    }
    p.temperature = (double)row_f32(&s->temperature, s, b, 1);
    p.min_p = (double)row_f32(&t->min_p, s, b, 0);
    p.top_k = row_i32(&t->top_k, s, b, 0);
    p.top_p = (double)row_f32(&t->top_p, s, b, 1);
    p.min_keep = row_i32(&q->min_keep, s, b, 1);
    p.temperature_range = (double)row_f32(&q->temperature_range, s, b, 0);
    p.temperature_exponent = (double)row_f32(&q->temperature_exponent, s, b, 1);
    p.typical_p = (double)row_f32(&q->typical_p, s, b, 1);
    p.top_n_sigma = (double)row_f32(&q->top_n_sigma, s, b, 0);
    p.epsilon = (double)row_f32(&q->epsilon, s, b, 0);
    p.eta = (double)row_f32(&q->eta, s, b, 0);
    p.top_a = (double)row_f32(&q->top_a, s, b, 0);
    p.surprise = (double)row_f32(&q->surprise, s, b, INFINITY);
    p.xtc_probability = (double)row_f32(&q->xtc_probability, s, b, 0);
    p.xtc_threshold = (double)row_f32(&q->xtc_threshold, s, b, 0.1f);
    p.smoothing_factor = (double)row_f32(&q->smoothing_factor, s, b, 0);
    p.smoothing_curve = (double)row_f32(&q->smoothing_curve, s, b, 1);
    p.adaptive_target = (double)row_f32(&q->adaptive_target, s, b, -1);
    if (q->xtc_keep.offsets) {
        p.xtc_keep = q->xtc_keep.ids + q->xtc_keep.offsets[b];
        p.xtc_keep_count = q->xtc_keep.offsets[b + 1] - q->xtc_keep.offsets[b];
    }
    return p;
}

/* --------------------------------------------------------------------------------- paths ---- */

int oracle_choose_result(oracle_path *path, int64_t results)
{
    if (results < 2)
        return 0;
    if (results > ORACLE_PATH_MOST || path->depth == ORACLE_PATH_LENGTH) {
        path->undecided = 1;
        return 0;
    }
    if (path->depth >= path->fixed)
        path->taken[path->depth] = 0;
    path->results[path->depth] = (int)results;
    return path->taken[path->depth++];
}

int oracle_next_path(oracle_path *path)
{
    int last = path->depth - 1;
    while (last >= 0 && path->taken[last] + 1 == path->results[last])
        last--;
    if (last < 0)
        return 0;
    path->taken[last]++;
    path->fixed = last + 1;
    path->depth = 0;
    path->undecided = 0;
    return 1;
}

static void read_tokens(const float *y, int64_t count, oracle_tokens *t)
{
    *t = (oracle_tokens){.list = t->list};
    for (int64_t i = 0; i < count; i++) {
        if (isnan(y[i]))
            t->status = GUMBEL_ROW_NAN;
        else
            t->list[t->count++] = (oracle_token){.id = i, .v = (double)y[i], .level = i};
    }
    if (t->status == GUMBEL_ROW_OK) {
        oracle_settle_tokens(t);
    }
}

/* ------------------------------------------------------------------------------- programs ---- */

static int is_off(const oracle_program *p, int rule)
{
    switch (rule) {
    case GUMBEL_PROGRAM_MIN_P:
        return p->min_p == 0;
    case GUMBEL_PROGRAM_TOP_K:
        return p->top_k == 0;
    case GUMBEL_PROGRAM_TOP_P:
        return p->top_p == 1;
    case GUMBEL_PROGRAM_TYPICAL_P:
        return p->typical_p == 1;
    case GUMBEL_PROGRAM_TOP_N_SIGMA:
        return p->top_n_sigma == 0;
    case GUMBEL_PROGRAM_EPSILON:
        return p->epsilon == 0;
    case GUMBEL_PROGRAM_ETA:
        return p->eta == 0;
    case GUMBEL_PROGRAM_TOP_A:
        return p->top_a == 0;
    case GUMBEL_PROGRAM_SURPRISE:
        return p->surprise == (double)INFINITY;
    case GUMBEL_PROGRAM_XTC:
        return p->xtc_probability == 0 || p->xtc_threshold > 0.5;
    case GUMBEL_PROGRAM_SMOOTHING:
        return p->smoothing_factor == 0;
    case GUMBEL_PROGRAM_ADAPTIVE_P:
        return p->adaptive_target < 0;
    default:
        return 0;
    }
}

static void run_rule(const oracle_program *p, int rule, oracle_tokens *t, oracle_path *path)
{
    if (rule == GUMBEL_PROGRAM_TEMPERATURE)
        oracle_scale_values(p, t, path);
    else if (rule == GUMBEL_PROGRAM_SMOOTHING)
        oracle_smooth_values(p, t);
    else if (rule == GUMBEL_PROGRAM_ADAPTIVE_P)
        oracle_adapt_values(p, t);
    else if (rule == GUMBEL_PROGRAM_TOP_K)
        oracle_keep_top_k(p, t, path);
    else if (rule == GUMBEL_PROGRAM_TOP_P)
        oracle_keep_top_p(p, t, path);
    else if (rule == GUMBEL_PROGRAM_TYPICAL_P)
        oracle_keep_typical(p, t, path);
    else if (rule == GUMBEL_PROGRAM_XTC)
        oracle_find_top_choices(p, t, path);
    else
        oracle_keep_threshold(p, rule, t, path);
}

void oracle_run_program(const oracle_program *p, const float *y, int64_t count, int64_t first_token,
                        oracle_path *path, oracle_tokens *t)
{
    int has_xtc = 0;
    read_tokens(y, count, t);
    if (p->temperature == 0)
        return;
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH && p->rules[i] != GUMBEL_PROGRAM_END; i++)
        if (t->status == GUMBEL_ROW_OK && !is_off(p, p->rules[i])) {
            run_rule(p, p->rules[i], t, path);
            has_xtc |= p->rules[i] == GUMBEL_PROGRAM_XTC;
        }
    if (t->status == GUMBEL_ROW_OK && has_xtc)
        oracle_exclude_top_choices(p, first_token, t);
}
