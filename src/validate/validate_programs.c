/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate_programs.h"

#include "core/fail.h"
#include "validate/validate_features.h"
#include "validate/validate_lists.h"
#include "validate/validate_rows.h"

#include <stdio.h>

/* Checks one program. */
static gumbel_status check_program(const gumbel_programs *q, int32_t index, gumbel_error *error)
{
    const uint8_t *rules = q->rules + index * GUMBEL_PROGRAM_LENGTH;
    uint32_t seen = 0;
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH && rules[i] != GUMBEL_PROGRAM_END; i++) {
        const int rule = rules[i];
#define FIELD gumbel_format_field("programs.rules[%d][%d]", (int)index, i).text
        GUMBEL_REFUSE_IF(rule > GUMBEL_PROGRAM_ADAPTIVE_P, error, FIELD,
                         "is %d; it must be a gumbel_program_rule", rule);
        GUMBEL_REFUSE_IF(seen >> rule & 1, error, FIELD,
                         "is %d, which the program already has; a rule may be there once", rule);
        GUMBEL_REFUSE_IF(seen >> GUMBEL_PROGRAM_ADAPTIVE_P & 1, error, FIELD,
                         "is %d; no rule may follow ADAPTIVE_P", rule);
        GUMBEL_REFUSE_IF(seen >> GUMBEL_PROGRAM_XTC & 1 && rule == GUMBEL_PROGRAM_ADAPTIVE_P, error,
                         FIELD, "is ADAPTIVE_P; a program that has XTC cannot have it");
        GUMBEL_REFUSE_IF(seen >> GUMBEL_PROGRAM_XTC & 1 && rule != GUMBEL_PROGRAM_TEMPERATURE,
                         error, FIELD, "is %d; only TEMPERATURE may follow XTC", rule);
        GUMBEL_REFUSE_IF(seen >> GUMBEL_PROGRAM_XTC & 1 && q->temperature_range.data, error, FIELD,
                         "is TEMPERATURE; with temperature_range it must come before XTC");
#undef FIELD
        seen |= 1u << rule;
    }
    GUMBEL_REFUSE_IF(!(seen >> GUMBEL_PROGRAM_TEMPERATURE & 1), error,
                     gumbel_format_field("programs.rules[%d]", (int)index).text,
                     "has no TEMPERATURE; list it where the temperature is to be applied");
    return GUMBEL_OK;
}

/* Makes the strides of the row parameters explicit. */
static gumbel_status read_parameters(gumbel_problem *p, gumbel_error *error)
{
    gumbel_programs *q = &p->programs;
    const int64_t rows = gumbel_slot_count(&p->sampling.slots, p->batch);
#define READ(of)                                                                                   \
    GUMBEL_FORWARD(gumbel_read_rows(q->of.data, sizeof *q->of.data, 1, rows, &q->of.stride,        \
                                    "programs." #of, error))
    READ(program);
    READ(min_keep);
    READ(temperature_range);
    READ(temperature_exponent);
    READ(typical_p);
    READ(top_n_sigma);
    READ(epsilon);
    READ(eta);
    READ(top_a);
    READ(surprise);
    READ(xtc_probability);
    READ(xtc_threshold);
    READ(smoothing_factor);
    READ(smoothing_curve);
    READ(adaptive_target);
#undef READ
    return gumbel_check_lists(&q->xtc_keep, 0, "programs.xtc_keep", error);
}

gumbel_status gumbel_read_programs(gumbel_problem *p, gumbel_error *error)
{
    gumbel_programs *q = &p->programs;
    GUMBEL_FORWARD(gumbel_read_options(q, sizeof *q, p->truncation.programs,
                                       "sampling.truncation.programs", error));
    p->truncation.programs = NULL;
    GUMBEL_REFUSE_IF(q->count < 1 || q->count > GUMBEL_PROGRAMS_MAX, error, "programs.count",
                     "is %d; it must be in 1..%d", (int)q->count, GUMBEL_PROGRAMS_MAX);
    GUMBEL_REFUSE_IF(q->reserved, error, "programs.reserved", "is not 0");
    GUMBEL_REFUSE_IF(!q->rules, error, "programs.rules", "is NULL");
    for (int32_t i = 0; i < q->count; i++)
        GUMBEL_FORWARD(check_program(q, i, error));
    p->features |= GUMBEL_FEATURE_PROGRAM;
    return read_parameters(p, error);
}

gumbel_status gumbel_check_host_programs(const gumbel_problem *p, gumbel_error *error)
{
    const gumbel_programs *q = &p->programs;
    /* The smallest positive float as lower limit means "> 0", the largest below 1 "< 1". */
    const float positive = 0x1p-149f, below_1 = 0x1.fffffep-1f, most = 0x1.fffffep127f;
    const struct {
        const gumbel_row_f32 *rows;
        gumbel_range range;
    } floats[] = {
        {&q->temperature_range, {"programs.temperature_range", 0, most, "finite and >= 0"}},
        {&q->temperature_exponent, {"programs.temperature_exponent", 0, most, "finite and >= 0"}},
        {&q->typical_p, {"programs.typical_p", positive, 1, "in (0, 1]"}},
        {&q->top_n_sigma, {"programs.top_n_sigma", 0, most, "finite and >= 0"}},
        {&q->epsilon, {"programs.epsilon", 0, below_1, "in [0, 1)"}},
        {&q->eta, {"programs.eta", 0, below_1, "in [0, 1)"}},
        {&q->top_a, {"programs.top_a", 0, 1, "in [0, 1]"}},
        {&q->surprise, {"programs.surprise", 0, INFINITY, ">= 0"}},
        {&q->xtc_probability, {"programs.xtc_probability", 0, 1, "in [0, 1]"}},
        {&q->xtc_threshold, {"programs.xtc_threshold", positive, 1, "in (0, 1]"}},
        {&q->smoothing_factor, {"programs.smoothing_factor", 0, most, "finite and >= 0"}},
        {&q->smoothing_curve, {"programs.smoothing_curve", 1, 3, "in [1, 3]"}},
        {&q->adaptive_target, {"programs.adaptive_target", -1, 1, "in [-1, 1]"}},
    };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        GUMBEL_FORWARD(gumbel_check_row_range(p, floats[i].rows, &floats[i].range, error));
    GUMBEL_FORWARD(
        gumbel_check_row_integers(p, &q->program, "programs.program", 0, q->count - 1, error));
    GUMBEL_FORWARD(
        gumbel_check_row_integers(p, &q->min_keep, "programs.min_keep", 1, INT32_MAX, error));
    return gumbel_check_host_lists(&q->xtc_keep, p->batch, "programs.xtc_keep", error);
}

/* ------------------------------------------------------------- equal orders ---- */

/* The rules that the orders of gumbel_truncation apply, in their sequence. */
static const struct {
    gumbel_order order;
    uint8_t rules[4];
} sequences[] = {
    {GUMBEL_ORDER_MIN_P_TOP_K_TOP_P,
     {GUMBEL_PROGRAM_TEMPERATURE, GUMBEL_PROGRAM_MIN_P, GUMBEL_PROGRAM_TOP_K,
      GUMBEL_PROGRAM_TOP_P}},
    {GUMBEL_ORDER_BEFORE_TEMPERATURE,
     {GUMBEL_PROGRAM_MIN_P, GUMBEL_PROGRAM_TOP_K, GUMBEL_PROGRAM_TOP_P,
      GUMBEL_PROGRAM_TEMPERATURE}},
    {GUMBEL_ORDER_TOP_K_TOP_P_MIN_P,
     {GUMBEL_PROGRAM_TEMPERATURE, GUMBEL_PROGRAM_TOP_K, GUMBEL_PROGRAM_TOP_P,
      GUMBEL_PROGRAM_MIN_P}},
    {GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE,
     {GUMBEL_PROGRAM_TOP_K, GUMBEL_PROGRAM_TOP_P, GUMBEL_PROGRAM_MIN_P,
      GUMBEL_PROGRAM_TEMPERATURE}},
};

/* Whether a row of the call may turn a rule on. */
static int is_set(const gumbel_problem *p, int rule)
{
    const gumbel_truncation *t = &p->truncation;
    const gumbel_programs *q = &p->programs;
    switch ((gumbel_program_rule)rule) {
    case GUMBEL_PROGRAM_END:
        return 0;
    case GUMBEL_PROGRAM_TEMPERATURE:
    case GUMBEL_PROGRAM_P_LESS:
        return 1;
    case GUMBEL_PROGRAM_MIN_P:
        return t->min_p.data != NULL;
    case GUMBEL_PROGRAM_TOP_K:
        return t->top_k.data != NULL;
    case GUMBEL_PROGRAM_TOP_P:
        return t->top_p.data != NULL;
    case GUMBEL_PROGRAM_TYPICAL_P:
        return q->typical_p.data != NULL;
    case GUMBEL_PROGRAM_TOP_N_SIGMA:
        return q->top_n_sigma.data != NULL;
    case GUMBEL_PROGRAM_EPSILON:
        return q->epsilon.data != NULL;
    case GUMBEL_PROGRAM_ETA:
        return q->eta.data != NULL;
    case GUMBEL_PROGRAM_TOP_A:
        return q->top_a.data != NULL;
    case GUMBEL_PROGRAM_SURPRISE:
        return q->surprise.data != NULL;
    case GUMBEL_PROGRAM_XTC:
        return q->xtc_probability.data != NULL;
    case GUMBEL_PROGRAM_SMOOTHING:
        return q->smoothing_factor.data != NULL;
    case GUMBEL_PROGRAM_ADAPTIVE_P:
        return q->adaptive_target.data != NULL;
    }
    return 1;
}

/* Copies the rules that may be on, up to GUMBEL_PROGRAM_END; returns their number. */
static int copy_set_rules(const gumbel_problem *p, const uint8_t *rules, int count, uint8_t *into)
{
    int found = 0;
    for (int i = 0; i < count && rules[i] != GUMBEL_PROGRAM_END; i++)
        if (is_set(p, rules[i]))
            into[found++] = rules[i];
    return found;
}

/* Whether min_p, top_k or top_p is set, but not among the `count` rules found in the program. */
static int is_rule_missing(const gumbel_problem *p, const uint8_t *found, int count)
{
    static const uint8_t rules[] = {GUMBEL_PROGRAM_MIN_P, GUMBEL_PROGRAM_TOP_K,
                                    GUMBEL_PROGRAM_TOP_P};
    for (size_t i = 0; i < sizeof rules; i++)
        if (is_set(p, rules[i]) && !memchr(found, rules[i], (size_t)count))
            return 1;
    return 0;
}

void gumbel_lower_program(gumbel_problem *p)
{
    gumbel_truncation *t = &p->truncation;
    const gumbel_programs *q = &p->programs;
    uint8_t found[GUMBEL_PROGRAM_LENGTH], sequence[4];
    if (!(p->features & GUMBEL_FEATURE_PROGRAM) ||
        p->features & GUMBEL_FEATURES_OF_REMOVED_TOKENS || q->program.data || q->min_keep.data ||
        q->temperature_range.data)
        return;
    const int count = copy_set_rules(p, q->rules, GUMBEL_PROGRAM_LENGTH, found);
    if (is_rule_missing(p, found, count))
        return;
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++)
        if (copy_set_rules(p, sequences[i].rules, 4, sequence) == count &&
            memcmp(found, sequence, (size_t)count) == 0) {
            p->features &= ~(uint32_t)GUMBEL_FEATURE_PROGRAM;
            t->order = sequences[i].order;
            if (t->min_p.data || t->top_k.data || t->top_p.data)
                p->features |= GUMBEL_FEATURE_TRUNCATION;
            return;
        }
}
