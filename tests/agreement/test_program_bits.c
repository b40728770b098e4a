/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules that are off in a row change no bit: the row draws as with the shorter program that lacks
 * them, on every instruction set. Shorter programs that an order draws are among these, with
 * outputs that an order writes and with ranks, for which programs run. Whole-row sums have the
 * reference's bits for rows that are sampled, and for values beyond the limit of the sums.
 */
#include "fixtures.h"
#include "requests.h"
#include "test_scale.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    T = GUMBEL_PROGRAM_TEMPERATURE,
    MIN_P = GUMBEL_PROGRAM_MIN_P,
    TOP_K = GUMBEL_PROGRAM_TOP_K,
    TOP_P = GUMBEL_PROGRAM_TOP_P,
    XTC = GUMBEL_PROGRAM_XTC,
};

/* Sets a parameter to none if row 0 of the request has the value at which its rule is off. */
static int drop_float(const request *row, gumbel_row_f32 *rows, float off)
{
    if (row_f32(rows, &row->sampling, 0, off) != off)
        return 0;
    *rows = (gumbel_row_f32){NULL, 0};
    return 1;
}

/* Whether a rule is off in the request's only row; its parameter is then set to none. */
static int drop_rule(request *row, int rule)
{
    gumbel_programs *q = &row->programs;
    gumbel_truncation *t = &row->truncation;
    switch ((gumbel_program_rule)rule) {
    case GUMBEL_PROGRAM_END:
    case GUMBEL_PROGRAM_TEMPERATURE:
    case GUMBEL_PROGRAM_P_LESS:
        return 0;
    case GUMBEL_PROGRAM_MIN_P:
        return drop_float(row, &t->min_p, 0);
    case GUMBEL_PROGRAM_TOP_P:
        return drop_float(row, &t->top_p, 1);
    case GUMBEL_PROGRAM_TOP_K:
        if (row_i32(&t->top_k, &row->sampling, 0, 0) != 0)
            return 0;
        t->top_k = (gumbel_row_i32){NULL, 0};
        return 1;
    case GUMBEL_PROGRAM_TYPICAL_P:
        return drop_float(row, &q->typical_p, 1);
    case GUMBEL_PROGRAM_TOP_N_SIGMA:
        return drop_float(row, &q->top_n_sigma, 0);
    case GUMBEL_PROGRAM_EPSILON:
        return drop_float(row, &q->epsilon, 0);
    case GUMBEL_PROGRAM_ETA:
        return drop_float(row, &q->eta, 0);
    case GUMBEL_PROGRAM_TOP_A:
        return drop_float(row, &q->top_a, 0);
    case GUMBEL_PROGRAM_SURPRISE:
        return drop_float(row, &q->surprise, INFINITY);
    case GUMBEL_PROGRAM_XTC:
        return drop_float(row, &q->xtc_probability, 0);
    case GUMBEL_PROGRAM_SMOOTHING:
        return drop_float(row, &q->smoothing_factor, 0);
    case GUMBEL_PROGRAM_ADAPTIVE_P:
        return drop_float(row, &q->adaptive_target, -1);
    }
    return 0;
}

/* Leaves the rules that are on in the request's only row, and only their truncation parameters.
 * Returns how many were left out. */
static int shorten_program(request *row, uint8_t shorter[GUMBEL_PROGRAM_LENGTH])
{
    gumbel_programs *q = &row->programs;
    gumbel_truncation *t = &row->truncation;
    const int32_t index = row_i32(&q->program, &row->sampling, 0, 0);
    const uint8_t *rules = q->rules + index * GUMBEL_PROGRAM_LENGTH;
    int count = 0, length = 0;
    memset(shorter, 0, GUMBEL_PROGRAM_LENGTH);
    for (; length < GUMBEL_PROGRAM_LENGTH && rules[length]; length++)
        if (!drop_rule(row, rules[length]))
            shorter[count++] = rules[length];
    if (!memchr(shorter, MIN_P, (size_t)count))
        t->min_p = (gumbel_row_f32){NULL, 0};
    if (!memchr(shorter, TOP_K, (size_t)count))
        t->top_k = (gumbel_row_i32){NULL, 0};
    if (!memchr(shorter, TOP_P, (size_t)count))
        t->top_p = (gumbel_row_f32){NULL, 0};
    if (row_i32(&q->min_keep, &row->sampling, 0, 1) == 1)
        q->min_keep = (gumbel_row_i32){NULL, 0};
    drop_float(row, &q->temperature_range, 0);
    q->rules = shorter;
    q->program = (gumbel_row_i32){NULL, 0};
    q->count = 1;
    return length - count;
}

/* Draws all rows on a device, and each alone with its shorter program on the reference. Returns the
 * number of rules that were off. */
static int64_t compare_rows(gumbel_device *device, gumbel_device *reference, const request *req,
                            int wide)
{
    int64_t off = 0;
    outcome *drawn = request_draw_rows(device, req, wide);
    for (int64_t b = 0; b < req->plan.batch; b++) {
        uint8_t shorter[GUMBEL_PROGRAM_LENGTH];
        request row;
        request_rows(req, b, 1, &row);
        off += shorten_program(&row, shorter);
        outcome *alone = request_draw_rows(reference, &row, wide);
        if (!outcome_same(drawn, b, alone, OUTCOME_ALL, request_describe_row(req, b)))
            fail_msg("%s: the shorter program draws other bits", request_describe(&req->plan));
        outcome_free(alone);
    }
    outcome_free(drawn);
    return off;
}

/* Rows drawn by an order have the bits of those whose program runs. */
static void compare_widths(gumbel_device *device, const request *req)
{
    outcome *narrow = request_draw_rows(device, req, 0), *wide = request_draw_rows(device, req, 1);
    if (!outcome_same(wide, 0, narrow, OUTCOME_TOKENS | OUTCOME_MASS, request_describe(&req->plan)))
        fail_msg("%s: an order draws other bits", request_describe(&req->plan));
    outcome_free(narrow);
    outcome_free(wide);
}

static int64_t compare_everywhere(gumbel_device *reference, const request_plan *plan,
                                  void (*change)(request *, uint64_t *), uint64_t *random)
{
    gumbel_isa isas[4];
    const int count = list_isas(isas);
    request *req = request_make(plan, reference);
    int64_t off = 0;
    if (change)
        change(req, random);
    for (int k = 0; k < count; k++) {
        gumbel_device *device = open_device(isas[k], 1 + k % 3, k % 2 ? 4096 : 192);
        off += compare_rows(device, reference, req, 0) + compare_rows(device, reference, req, 1);
        compare_widths(device, req);
        gumbel_close(device);
    }
    request_free(req);
    return off;
}

static request_plan plan_rows(int index)
{
    request_plan plan = request_plan_at_random(50000 + index, 0);
    plan.truncation = 1;
    plan.programs = 1 + index % GUMBEL_PROGRAMS_MAX;
    plan.usual = index % 2;
    plan.cuts = REQUEST_TOP_K | REQUEST_TOP_P | REQUEST_MIN_P;
    return plan;
}

/* Programs of any rules, some of which are off in some rows. */
static void any_programs(void **state)
{
    int64_t off = 0;
    for (int i = 0; i < limit_count(160, 8); i++) {
        request_plan plan = plan_rows(i);
        if (i % 8 == 7) { /* samples guess where top_p and typical_p end */
            plan.vocab = 12001;
            plan.vocab_size = plan.transforms = 0;
            plan.batch = 3;
        }
        off += compare_everywhere(*state, &plan, NULL, NULL);
    }
    assert_true(off > limit_count(160, 8));
}

/* Top_k, top_p and min_p in any order, TEMPERATURE among them, and all other rules at their values
 * that turn them off. */
static void set_order_with_other_rules(request *req, uint64_t *random)
{
    static const float zero = 0, one = 1, off = -1, infinity = INFINITY;
    static uint8_t rules[GUMBEL_PROGRAM_LENGTH];
    uint8_t order[4] = {T, MIN_P, TOP_K, TOP_P};
    int count = 0, next = 0;
    for (uint32_t i = 3; i > 0; i--) {
        const uint32_t at = random_below(random, i + 1);
        const uint8_t moved = order[i];
        order[i] = order[at];
        order[at] = moved;
    }
    memset(rules, 0, sizeof rules);
    for (uint8_t rule = GUMBEL_PROGRAM_TYPICAL_P; rule <= GUMBEL_PROGRAM_SMOOTHING; rule++) {
        while (next < 4 && random_below(random, 3) == 0)
            rules[count++] = order[next++];
        if (rule != GUMBEL_PROGRAM_P_LESS && rule != XTC)
            rules[count++] = rule;
    }
    while (next < 4)
        rules[count++] = order[next++];
    rules[count] = random_below(random, 2) ? XTC : GUMBEL_PROGRAM_ADAPTIVE_P;
    req->programs = (gumbel_programs){.struct_size = sizeof req->programs,
                                      .rules = rules,
                                      .count = 1,
                                      .typical_p = {&one, GUMBEL_SAME},
                                      .top_n_sigma = {&zero, GUMBEL_SAME},
                                      .epsilon = {&zero, GUMBEL_SAME},
                                      .eta = {&zero, GUMBEL_SAME},
                                      .top_a = {&zero, GUMBEL_SAME},
                                      .surprise = {&infinity, GUMBEL_SAME},
                                      .xtc_probability = {&zero, GUMBEL_SAME},
                                      .smoothing_factor = {&zero, GUMBEL_SAME},
                                      .adaptive_target = {&off, GUMBEL_SAME}};
    req->truncation.programs = &req->programs;
}

static void orders_with_other_rules(void **state)
{
    uint64_t random = 51;
    for (int i = 0; i < limit_count(240, 8); i++) {
        const request_plan plan = plan_rows(1000 + i);
        assert_true(compare_everywhere(*state, &plan, set_order_with_other_rules, &random) > 0);
    }
}

/* -------------------------------------------------------------------------- far values ---- */

enum { FAR_VOCAB = 2000 };

/* z of a row, by a program of one rule and TEMPERATURE. */
static void process_row(gumbel_device *device, const float *row, int rule, float *z)
{
    static const float one = 1, tenth = 0.1f;
    const uint8_t rules[GUMBEL_PROGRAM_LENGTH] = {(uint8_t)rule, T};
    const gumbel_programs programs = {.struct_size = sizeof programs,
                                      .rules = rules,
                                      .count = 1,
                                      .typical_p = {&tenth, GUMBEL_SAME},
                                      .top_n_sigma = {&one, GUMBEL_SAME},
                                      .eta = {&tenth, GUMBEL_SAME}};
    const gumbel_truncation truncation = {.struct_size = sizeof truncation, .programs = &programs};
    const gumbel_sampling sampling = {.struct_size = sizeof sampling, .truncation = &truncation};
    const gumbel_logits logits = {.struct_size = sizeof logits,
                                  .logits = {row, GUMBEL_FLOAT32, 1, FAR_VOCAB, 0, {0}}};
    assert_int_equal(request_process(device, &logits, &sampling, z), GUMBEL_OK);
}

/* Logits with values beyond the limit of 2^15, at it, just within it, masked by -FLT_MAX, and
 * -inf. */
static void fill_far_row(float *row, uint64_t *random)
{
    static const float far[] = {0x1p15f,  -0x1p15f, 0x1.fffffep14f, -0x1.fffffep14f, 0x1.8p15f,
                                -0x1p20f, -FLT_MAX, -INFINITY,      -1e9f,           4e4f};
    const uint32_t rarity = 1 + random_below(random, 40), kinds = 1 + random_below(random, 10);
    for (int i = 0; i < FAR_VOCAB; i++)
        row[i] = random_below(random, rarity) == 0 ? far[random_below(random, kinds)]
                                                   : 3 * random_normal(random);
}

static void values_beyond_the_limit(void **state)
{
    static const int rules[] = {GUMBEL_PROGRAM_TOP_N_SIGMA, GUMBEL_PROGRAM_ETA,
                                GUMBEL_PROGRAM_P_LESS, GUMBEL_PROGRAM_TYPICAL_P};
    float row[FAR_VOCAB], expected[FAR_VOCAB], z[FAR_VOCAB];
    uint64_t random = 52;
    gumbel_isa isas[4];
    const int count = list_isas(isas);
    for (int k = 0; k < count; k++) {
        gumbel_device *device = open_device(isas[k], 1, 4096);
        for (int i = 0; i < limit_count(200, 8); i++) {
            fill_far_row(row, &random);
            process_row(*state, row, rules[i % 4], expected);
            process_row(device, row, rules[i % 4], z);
            assert_memory_equal(z, expected, sizeof z);
        }
        gumbel_close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_programs),
        cmocka_unit_test(orders_with_other_rules),
        cmocka_unit_test(values_beyond_the_limit),
    };
    return cmocka_run_group_tests(tests, open_reference, close_device);
}
