/* SPDX-License-Identifier: Apache-2.0
 *
 * The program of one row of a problem, with its parameters. The host does not check parameters in
 * GPU memory, so an invalid one counts as off.
 */
#ifndef GUMBEL_CORE_ROW_PROGRAM_H
#define GUMBEL_CORE_ROW_PROGRAM_H

#include "core/row.h"
#include "maths/program_rules.h"

/* A row's program. Rules that are off are still listed. */
typedef struct gumbel_row_program {
    uint8_t rules[GUMBEL_PROGRAM_LENGTH]; /* gumbel_program_rule */
    int exact;                            /* ties are broken by id */
    float temperature;                    /* above 0 */
    float temperature_range, temperature_exponent;
    float min_p;
    int64_t top_k;
    float top_p;
    int64_t min_keep;
    float typical_p, top_n_sigma, epsilon, eta, top_a, surprise;
    float xtc_probability, xtc_threshold;
    float smoothing_factor, smoothing_curve;
    float adaptive_target;
} gumbel_row_program;

/* A row parameter's value, `otherwise` if there is none or it is not in [low, high]. */
GUMBEL_INLINE float gumbel_float_in(const gumbel_row_f32 *rows, int64_t slot, float low, float high,
                                    float otherwise)
{
    const float value = rows->data ? rows->data[slot * rows->stride] : otherwise;
    return value >= low && value <= high ? value : otherwise;
}

GUMBEL_INLINE int32_t gumbel_integer_in(const gumbel_row_i32 *rows, int64_t slot, int32_t low,
                                        int32_t high, int32_t otherwise)
{
    const int32_t value = rows->data ? rows->data[slot * rows->stride] : otherwise;
    return value >= low && value <= high ? value : otherwise;
}

/* The program of row b, which is not greedy, of the programs `rules` [count,
 * GUMBEL_PROGRAM_LENGTH]. */
GUMBEL_INLINE gumbel_row_program gumbel_read_program(const gumbel_problem *p, const uint8_t *rules,
                                                     int64_t b)
{
    const gumbel_truncation *t = &p->truncation;
    const gumbel_programs *q = &p->programs;
    const int64_t slot = gumbel_problem_slot(p, b);
    const int32_t index = gumbel_integer_in(&q->program, slot, 0, q->count - 1, 0);
    gumbel_row_program r;
    int ended = 0;
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH; i++) {
        const uint8_t rule = rules[index * GUMBEL_PROGRAM_LENGTH + i];
        ended |= rule == GUMBEL_PROGRAM_END;
        r.rules[i] = ended ? (uint8_t)GUMBEL_PROGRAM_END : rule;
    }
    r.exact = t->ties == GUMBEL_TIES_EXACT;
    r.temperature = gumbel_temperature_at(p, slot);
    r.temperature_range = gumbel_float_in(&q->temperature_range, slot, 0.0f, FLT_MAX, 0.0f);
    r.temperature_exponent = gumbel_float_in(&q->temperature_exponent, slot, 0.0f, FLT_MAX, 1.0f);
    r.min_p = gumbel_float_in(&t->min_p, slot, 0.0f, 1.0f, 0.0f);
    r.top_k = gumbel_integer_in(&t->top_k, slot, 0, INT32_MAX, 0);
    r.top_p = gumbel_float_in(&t->top_p, slot, 0x1p-149f, 1.0f, 1.0f);
    r.min_keep = gumbel_integer_in(&q->min_keep, slot, 1, INT32_MAX, 1);
    r.typical_p = gumbel_float_in(&q->typical_p, slot, 0x1p-149f, 1.0f, 1.0f);
    r.top_n_sigma = gumbel_float_in(&q->top_n_sigma, slot, 0.0f, FLT_MAX, 0.0f);
    r.epsilon = gumbel_float_in(&q->epsilon, slot, 0.0f, 1.0f, 0.0f);
    r.eta = gumbel_float_in(&q->eta, slot, 0.0f, 1.0f, 0.0f);
    r.top_a = gumbel_float_in(&q->top_a, slot, 0.0f, 1.0f, 0.0f);
    r.surprise = gumbel_float_in(&q->surprise, slot, 0.0f, INFINITY, INFINITY);
    r.xtc_probability = gumbel_float_in(&q->xtc_probability, slot, 0.0f, 1.0f, 0.0f);
    r.xtc_threshold = gumbel_float_in(&q->xtc_threshold, slot, 0x1p-149f, 1.0f, 1.0f);
    if (!q->xtc_threshold.data)
        r.xtc_threshold = 0.1f;
    r.smoothing_factor = gumbel_float_in(&q->smoothing_factor, slot, 0.0f, FLT_MAX, 0.0f);
    r.smoothing_curve = gumbel_float_in(&q->smoothing_curve, slot, 1.0f, 3.0f, 1.0f);
    r.adaptive_target = gumbel_float_in(&q->adaptive_target, slot, 0.0f, 1.0f, -1.0f);
    return r;
}

/* gumbel_read_program() of the problem's own rules. */
GUMBEL_INLINE gumbel_row_program gumbel_problem_program(const gumbel_problem *p, int64_t b)
{
    return gumbel_read_program(p, p->programs.rules, b);
}

/* The sums that a rule requires which removes all values below a threshold of its own; -1 for a
 * rule of another kind. */
GUMBEL_INLINE int gumbel_threshold_facts(gumbel_program_rule rule)
{
    switch (rule) {
    case GUMBEL_PROGRAM_MIN_P:
        return 0;
    case GUMBEL_PROGRAM_EPSILON:
    case GUMBEL_PROGRAM_TOP_A:
    case GUMBEL_PROGRAM_SURPRISE:
        return GUMBEL_FACT_MASS;
    case GUMBEL_PROGRAM_ETA:
        return GUMBEL_FACT_ENTROPY;
    case GUMBEL_PROGRAM_P_LESS:
        return GUMBEL_FACT_SQUARED;
    case GUMBEL_PROGRAM_TOP_N_SIGMA:
        return GUMBEL_FACT_SPREAD;
    default:
        return -1;
    }
}

/* How far below the largest value such a rule's threshold is, >= 0. */
GUMBEL_INLINE float gumbel_threshold_distance(const gumbel_row_program *r, gumbel_program_rule rule,
                                              const gumbel_facts *facts)
{
    switch (rule) {
    case GUMBEL_PROGRAM_MIN_P:
        return -gumbel_log_min_p(r->min_p);
    case GUMBEL_PROGRAM_EPSILON:
        return gumbel_distance_of_probability(facts, gumbel_log_probability(r->epsilon));
    case GUMBEL_PROGRAM_ETA:
        return gumbel_distance_of_eta(facts, r->eta);
    case GUMBEL_PROGRAM_TOP_A:
        return gumbel_distance_of_top_a(facts, r->top_a);
    case GUMBEL_PROGRAM_P_LESS:
        return gumbel_distance_of_p_less(facts);
    case GUMBEL_PROGRAM_SURPRISE:
        return gumbel_distance_of_probability(facts, -r->surprise * GUMBEL_LN2);
    case GUMBEL_PROGRAM_TOP_N_SIGMA:
        return r->top_n_sigma * gumbel_facts_deviation(facts);
    default:
        return INFINITY;
    }
}

/* Whether the row's parameters turn a rule on. */
GUMBEL_INLINE int gumbel_rule_is_on(const gumbel_row_program *r, gumbel_program_rule rule)
{
    switch (rule) {
    case GUMBEL_PROGRAM_END:
        return 0;
    case GUMBEL_PROGRAM_TEMPERATURE:
    case GUMBEL_PROGRAM_P_LESS:
        return 1;
    case GUMBEL_PROGRAM_MIN_P:
        return r->min_p > 0.0f;
    case GUMBEL_PROGRAM_TOP_K:
        return r->top_k > 0;
    case GUMBEL_PROGRAM_TOP_P:
        return r->top_p < 1.0f;
    case GUMBEL_PROGRAM_TYPICAL_P:
        return r->typical_p < 1.0f;
    case GUMBEL_PROGRAM_TOP_N_SIGMA:
        return r->top_n_sigma > 0.0f;
    case GUMBEL_PROGRAM_EPSILON:
        return r->epsilon > 0.0f;
    case GUMBEL_PROGRAM_ETA:
        return r->eta > 0.0f;
    case GUMBEL_PROGRAM_TOP_A:
        return r->top_a > 0.0f;
    case GUMBEL_PROGRAM_SURPRISE:
        return r->surprise < INFINITY;
    case GUMBEL_PROGRAM_XTC:
        return r->xtc_probability > 0.0f && r->xtc_threshold <= 0.5f;
    case GUMBEL_PROGRAM_SMOOTHING:
        return r->smoothing_factor > 0.0f;
    case GUMBEL_PROGRAM_ADAPTIVE_P:
        return r->adaptive_target >= 0.0f;
    }
    return 0;
}

/* The rules of an order, if one keeps the same tokens as the program, whose rules that are off do
 * not count: MIN_P, TOP_K and TOP_P, all of them before TEMPERATURE or after it. Returns 0 and
 * leaves *rules as it is if no order does. */
GUMBEL_INLINE int gumbel_find_program_rules(const gumbel_row_program *r, int64_t vocab,
                                            gumbel_rules *rules)
{
    gumbel_rules found = {0.0f, 0, 1.0f, 0, 0, 0, 0};
    int count = 0, temperature_at = 0, min_p_before = 0, top_k_before = 0;
    if (r->min_keep > 1 || r->temperature_range > 0.0f)
        return 0;
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH && r->rules[i] != GUMBEL_PROGRAM_END; i++) {
        const gumbel_program_rule rule = (gumbel_program_rule)r->rules[i];
        if (!gumbel_rule_is_on(r, rule))
            continue;
        if (rule == GUMBEL_PROGRAM_TEMPERATURE) {
            temperature_at = count;
        } else if (rule == GUMBEL_PROGRAM_MIN_P) {
            found.min_p = r->min_p;
        } else if (rule == GUMBEL_PROGRAM_TOP_K) {
            found.top_k = r->top_k < vocab ? r->top_k : 0;
        } else if (rule == GUMBEL_PROGRAM_TOP_P) {
            found.top_p = r->top_p;
            min_p_before = found.min_p > 0.0f;
            top_k_before = found.top_k > 0;
        } else {
            return 0;
        }
        count++;
    }
    if (temperature_at > 0 && temperature_at < count - 1)
        return 0;
    if (found.top_p < 1.0f && min_p_before && !top_k_before && found.top_k > 0)
        return 0;
    found.exact = r->exact;
    found.before = temperature_at > 0;
    found.joint = found.top_p < 1.0f && !min_p_before && !top_k_before;
    found.last = top_k_before && !min_p_before && found.min_p > 0.0f;
    *rules = found;
    return 1;
}

/* The first rules of a program, if the largest values alone determine the tokens that they keep. */
typedef struct gumbel_program_prefix {
    int scaled;    /* TEMPERATURE comes first, so the values are y times its inverse; otherwise y */
    int length;    /* rules up to that TEMPERATURE, which need not run on such values; or 0 */
    int64_t top_k; /* of TOP_K; 0: none */
    float min_p;   /* of MIN_P; 0: none */
} gumbel_program_prefix;

/* The TEMPERATURE, TOP_K and MIN_P with which a program begins; rules that are off do not count. A
 * dynamic temperature ends them, as it depends on all values. */
GUMBEL_INLINE gumbel_program_prefix gumbel_find_program_prefix(const gumbel_row_program *r)
{
    gumbel_program_prefix prefix = {0, 0, 0, 0.0f};
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH && r->rules[i] != GUMBEL_PROGRAM_END; i++) {
        const gumbel_program_rule rule = (gumbel_program_rule)r->rules[i];
        const int begins = prefix.top_k == 0 && prefix.min_p == 0.0f;
        if (!gumbel_rule_is_on(r, rule))
            continue;
        if (rule == GUMBEL_PROGRAM_TOP_K) {
            prefix.top_k = r->top_k;
        } else if (rule == GUMBEL_PROGRAM_MIN_P) {
            prefix.min_p = r->min_p;
        } else if (rule == GUMBEL_PROGRAM_TEMPERATURE && begins && r->temperature_range == 0.0f) {
            prefix.scaled = 1;
            prefix.length = i + 1;
        } else {
            break;
        }
    }
    return prefix;
}

#endif
