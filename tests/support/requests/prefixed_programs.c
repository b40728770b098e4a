/* SPDX-License-Identifier: Apache-2.0 */
#include "prefixed_programs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHOICES = 4 };

static int one_of(uint64_t *random, uint32_t count) { return random_below(random, count) == 0; }

/* Moves a rule to `place`. */
static void move_rule(uint8_t *order, uint8_t rule, int place)
{
    for (int i = 0; i < GUMBEL_PROGRAM_SMOOTHING; i++)
        if (order[i] == rule) {
            order[i] = order[place];
            order[place] = rule;
            return;
        }
}

/* Begins with TOP_K or MIN_P or both, or TEMPERATURE and then these. */
static void begin_with_largest(uint8_t *order, uint64_t *random)
{
    int place = 0;
    if (one_of(random, 3))
        move_rule(order, GUMBEL_PROGRAM_TEMPERATURE, place++);
    if (!one_of(random, 3))
        move_rule(order, GUMBEL_PROGRAM_TOP_K, place++);
    if (one_of(random, 2))
        move_rule(order, GUMBEL_PROGRAM_MIN_P, place);
}

/* A random order of 1 to 7 rules, and TEMPERATURE; two thirds of them begin_with_largest(). After
 * XTC only TEMPERATURE, and before it if the temperature is dynamic. ADAPTIVE_P follows a third of
 * the programs without XTC. */
static void make_rules(uint8_t *rules, int dynamic, uint64_t *random)
{
    uint64_t own = *random ^ GUMBEL_PROGRAM_ADAPTIVE_P; /* other choices do not depend on it */
    uint8_t order[GUMBEL_PROGRAM_SMOOTHING];
    int count = 0, most = 1 + (int)random_below(random, 7), has_temperature = 0, has_xtc = 0;
    for (int i = 0; i < GUMBEL_PROGRAM_SMOOTHING; i++) {
        const uint32_t at = random_below(random, (uint32_t)i + 1);
        order[i] = order[at];
        order[at] = (uint8_t)(i + 1);
    }
    if (!one_of(random, 3))
        begin_with_largest(order, random);
    memset(rules, 0, GUMBEL_PROGRAM_LENGTH);
    for (int i = 0; i < GUMBEL_PROGRAM_SMOOTHING && count < most && !has_xtc; i++) {
        if (order[i] == GUMBEL_PROGRAM_XTC && dynamic && !has_temperature)
            continue;
        has_temperature |= order[i] == GUMBEL_PROGRAM_TEMPERATURE;
        has_xtc = order[i] == GUMBEL_PROGRAM_XTC;
        rules[count++] = order[i];
    }
    if (!has_temperature)
        rules[count++] = GUMBEL_PROGRAM_TEMPERATURE;
    if (!has_xtc && one_of(&own, 3))
        rules[count] = GUMBEL_PROGRAM_ADAPTIVE_P;
}

static void describe_rules(prefixed_programs *p, int64_t batch)
{
    size_t length = (size_t)snprintf(p->text, sizeof p->text, "rules");
    for (int64_t b = 0; b < batch && b < 4; b++)
        for (const uint8_t *rule = p->rules[p->of_row[b]]; *rule; rule++)
            length += (size_t)snprintf(p->text + length, sizeof p->text - length, "%s%d",
                                       rule == p->rules[p->of_row[b]] ? " | " : " ", (int)*rule);
}

/* A row parameter whose values are among the choices. */
static gumbel_row_f32 choose_values(prefixed_programs *p, int *used, const float *choices,
                                    uint64_t *random)
{
    float *values = p->values[(*used)++];
    for (int b = 0; b < PREFIXED_PROGRAM_ROWS; b++)
        values[b] = choices[random_below(random, CHOICES)];
    return (gumbel_row_f32){values, 1};
}

/* Sets the parameters of the rules. */
static void set_parameters(prefixed_programs *p, request *req, int dynamic, uint64_t *random)
{
    gumbel_programs *q = &p->all;
    gumbel_truncation *t = &req->truncation;
    int used = 0;
#define SET(field, ...) field = choose_values(p, &used, (const float[CHOICES]){__VA_ARGS__}, random)
    if (dynamic)
        SET(q->temperature_range, 0.0f, 0.2f, 0.5f, 2.0f);
    SET(q->temperature_exponent, 1.0f, 0.5f, 3.0f, 0.0f);
    SET(q->typical_p, 0.2f, 0.9f, 0.99f, 1.0f);
    SET(q->top_n_sigma, 0.0f, 0.5f, 1.0f, 2.5f);
    SET(q->epsilon, 0.0f, 3e-4f, 0.01f, 0.3f);
    SET(q->eta, 0.0f, 2e-3f, 0.05f, 1e-6f);
    SET(q->top_a, 0.0f, 0.2f, 1.0f, 0.01f);
    SET(q->surprise, INFINITY, 2.0f, 10.0f, 0.0f);
    SET(q->xtc_probability, 0.5f, 0.3f, 1.0f, 0.0f);
    SET(q->xtc_threshold, 0.1f, 0.01f, 1e-4f, 0.3f);
    SET(q->smoothing_factor, 0.0f, 0.3f, 1.0f, 0.05f);
    SET(q->smoothing_curve, 1.0f, 1.5f, 3.0f, 2.0f);
    SET(t->top_p, 0.3f, 0.9f, 0.999f, 1.0f);
    SET(t->min_p, 0.0f, 0.05f, 1e-3f, 0.5f);
#undef SET
    uint64_t own = *random ^ GUMBEL_PROGRAM_ADAPTIVE_P;
    q->adaptive_target =
        choose_values(p, &used, (const float[CHOICES]){0.5f, 0.05f, 1.0f, -1.0f}, &own);
    t->top_k = (gumbel_row_i32){p->top_k, 1};
}

void prefixed_programs_set(prefixed_programs *p, request *req, uint64_t *random)
{
    const gumbel_truncation *t = &req->truncation;
    const int dynamic = one_of(random, 3);
    const int64_t batch = req->plan.batch;
    p->all = (gumbel_programs){.struct_size = sizeof p->all,
                               .rules = p->rules[0],
                               .count = PREFIXED_PROGRAMS,
                               .program = {p->of_row, 1},
                               .min_keep = {p->min_keep, 1}};
    req->truncation =
        (gumbel_truncation){.struct_size = sizeof *t, .ties = t->ties, .programs = &p->all};
    for (int i = 0; i < PREFIXED_PROGRAMS; i++)
        make_rules(p->rules[i], dynamic, random);
    for (int b = 0; b < PREFIXED_PROGRAM_ROWS; b++) {
        p->of_row[b] = (int32_t)random_below(random, PREFIXED_PROGRAMS);
        p->min_keep[b] = one_of(random, 2) ? 1 : 1 + (int32_t)random_below(random, 40);
        const uint32_t most = one_of(random, 2) ? 900 : 60;
        p->top_k[b] = one_of(random, 6) ? 0 : 1 + (int32_t)random_below(random, most);
    }
    set_parameters(p, req, dynamic, random);
    for (int64_t b = 0; b <= batch; b++)
        p->offsets[b] = 2 * b;
    for (int64_t i = 0; i < 2 * batch; i++)
        p->keep[i] = (int32_t)(req->plan.first_token +
                               random_below(random, (uint32_t)req->plan.vocab + 3000));
    if (one_of(random, 4))
        p->all.xtc_keep = (gumbel_token_lists){.offsets = p->offsets, .ids = p->keep};
    describe_rules(p, batch);
}
