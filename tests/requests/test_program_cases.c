/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs against the published test cases of other implementations: figures of llama.cpp's
 * tests/test-sampling.cpp at 07e4038f, and of tests/generation/test_logits_process.py of
 * transformers at 019af3ac.
 *
 * Differences by design:
 * - llama.cpp tests XTC with P = 0.99 and a seed whose coin removes the tokens; P = 1 here.
 * - top_p = 0 of llama.cpp is 2^-149 here, and a min_p above 1 is an error.
 * - A temperature of 0 is greedy: the draw is tested in place of the probabilities.
 * - min_tokens_to_keep of transformers' top_k is a larger k here: min_keep does not change TOP_K.
 * - A token of probability 0 never remains here; llama.cpp counts it.
 */
#include "fixtures.h"
#include "program_row.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 10, LENGTH = 3 };

enum {
    T = GUMBEL_PROGRAM_TEMPERATURE,
    MIN_P = GUMBEL_PROGRAM_MIN_P,
    TOP_K = GUMBEL_PROGRAM_TOP_K,
    TOP_P = GUMBEL_PROGRAM_TOP_P,
    TYPICAL = GUMBEL_PROGRAM_TYPICAL_P,
    SIGMA = GUMBEL_PROGRAM_TOP_N_SIGMA,
    EPSILON = GUMBEL_PROGRAM_EPSILON,
    ETA = GUMBEL_PROGRAM_ETA,
    P_LESS = GUMBEL_PROGRAM_P_LESS,
    XTC = GUMBEL_PROGRAM_XTC,
};

/* A row of probabilities, a rule with its parameter, and the probabilities of the tokens that
 * remain; 0: removed. They are compared after normalisation. */
typedef struct published_case {
    const char *name;
    int count;
    float p[MOST];
    uint8_t rule;
    float parameter;
    double expected[MOST];
    int32_t min_keep; /* 0: the default */
} published_case;

#define TENTHS                                                                                     \
    4, { 0.1f, 0.2f, 0.3f, 0.4f }
#define FALLING                                                                                    \
    4, { 0.4f, 0.3f, 0.2f, 0.1f }

static const published_case cases[] = {
    /* test-sampling.cpp */
    {"test_temp 1", TENTHS, T, 1, {0.1, 0.2, 0.3, 0.4}, 0},
    {"test_top_k 1", TENTHS, TOP_K, 1, {0, 0, 0, 1}, 0},
    {"test_top_k 3", TENTHS, TOP_K, 3, {0, 0.22222, 0.33333, 0.44444}, 0},
    {"test_top_k 4", TENTHS, TOP_K, 4, {0.1, 0.2, 0.3, 0.4}, 0},
    {"test_top_k 0", TENTHS, TOP_K, 0, {0.1, 0.2, 0.3, 0.4}, 0},
    {"test_top_p 0", TENTHS, TOP_P, 0x1p-149f, {0, 0, 0, 1}, 0},
    {"test_top_p 0.7", TENTHS, TOP_P, 0.7f, {0, 0, 0.428571, 0.571429}, 0},
    {"test_top_p 0.8", TENTHS, TOP_P, 0.8f, {0, 0.22222, 0.33333, 0.44444}, 0},
    {"test_top_p 1", TENTHS, TOP_P, 1, {0.1, 0.2, 0.3, 0.4}, 0},
    {"test_min_p 0", TENTHS, MIN_P, 0, {0.1, 0.2, 0.3, 0.4}, 0},
    {"test_min_p 0.24", TENTHS, MIN_P, 0.24f, {0.1, 0.2, 0.3, 0.4}, 0},
    {"test_min_p 0.26", TENTHS, MIN_P, 0.26f, {0, 0.2, 0.3, 0.4}, 0},
    {"test_min_p 0.49", TENTHS, MIN_P, 0.49f, {0, 0.2, 0.3, 0.4}, 0},
    {"test_min_p 0.51", TENTHS, MIN_P, 0.51f, {0, 0, 0.3, 0.4}, 0},
    {"test_min_p 0.74", TENTHS, MIN_P, 0.74f, {0, 0, 0.3, 0.4}, 0},
    {"test_min_p 0.76", TENTHS, MIN_P, 0.76f, {0, 0, 0, 0.4}, 0},
    {"test_min_p 1", TENTHS, MIN_P, 1, {0, 0, 0, 0.4}, 0},
    {"test_xtc 0.09", FALLING, XTC, 0.09f, {0, 0, 0, 0.1}, 0},
    {"test_xtc 0.19", FALLING, XTC, 0.19f, {0, 0, 0.2, 0.1}, 0},
    {"test_xtc 0.29", FALLING, XTC, 0.29f, {0, 0.3, 0.2, 0.1}, 0},
    {"test_xtc 0.39", FALLING, XTC, 0.39f, {0.4, 0.3, 0.2, 0.1}, 0},
    {"test_typical 1", 4, {0.97f, 0.01f, 0.01f, 0.01f}, TYPICAL, 0.5f, {0.97}, 0},
    {"test_typical 2", 4, {0.4f, 0.2f, 0.2f, 0.2f}, TYPICAL, 0.5f, {0, 0.2, 0.2, 0.2}, 0},
    {"test_top_n_sigma 1", TENTHS, SIGMA, 1, {0, 0, 0.428571, 0.571429}, 0},
    {"test_top_n_sigma 0", TENTHS, SIGMA, 0, {0.1, 0.2, 0.3, 0.4}, 0},
    {"test_top_n_sigma 3", TENTHS, SIGMA, 3, {0.1, 0.2, 0.3, 0.4}, 0},
    {"test_p_less 0.225",
     5,
     {0.1f, 0.15f, 0.2f, 0.25f, 0.3f},
     P_LESS,
     0,
     {0, 0, 0, 0.45454545, 0.54545455},
     0},
    {"test_p_less 0.2", 5, {0.2f, 0.2f, 0.2f, 0.2f, 0.2f}, P_LESS, 0, {0.2, 0.2, 0.2, 0.2, 0.2}, 0},
    /* test_logits_process.py */
    {"test_top_p_dist_warper 1", 4, {0.3f, 0.1f, 0.1f, 0.5f}, TOP_P, 0.8f, {0.3, 0, 0, 0.5}, 0},
    {"test_top_p_dist_warper 2",
     4,
     {0.15f, 0.3f, 0.3f, 0.25f},
     TOP_P,
     0.8f,
     {0, 0.3, 0.3, 0.25},
     0},
    {"test_min_p_dist_warper 1",
     4,
     {0.9f, 0.0274f, 0.047f, 0.0274f},
     MIN_P,
     0.05f,
     {0.9, 0, 0.047},
     0},
    {"test_min_p_dist_warper 2",
     4,
     {0.15f, 0.3f, 0.3f, 0.25f},
     MIN_P,
     0.05f,
     {0.15, 0.3, 0.3, 0.25},
     0},
    {"test_min_p_dist_warper 3", 4, {0.97f, 0.01f, 0.01f, 0.01f}, MIN_P, 0.05f, {0.97}, 0},
    {"test_typical_dist_warper 1", 4, {0.97f, 0.01f, 0.01f, 0.01f}, TYPICAL, 0.5f, {0.97}, 0},
    {"test_typical_dist_warper 2",
     4,
     {0.4f, 0.2f, 0.2f, 0.2f},
     TYPICAL,
     0.5f,
     {0, 0.2, 0.2, 0.2},
     0},
    {"test_typical_dist_warper, uniform",
     5,
     {0.2f, 0.2f, 0.2f, 0.2f, 0.2f},
     TYPICAL,
     0.5f,
     {0.2, 0.2, 0.2, 0.2, 0.2},
     3},
    {"test_epsilon_dist_warper 1", 4, {0.87f, 0.099f, 0.001f, 0.03f}, EPSILON, 0.1f, {0.87}, 0},
    {"test_epsilon_dist_warper 2",
     4,
     {0.4f, 0.299f, 0.101f, 0.2f},
     EPSILON,
     0.1f,
     {0.4, 0.299, 0.101, 0.2},
     0},
    {"test_eta_dist_warper 1", 4, {0, 0.1f, 0.8f, 0.1f}, ETA, 0.0625f, {0, 0.1, 0.8, 0.1}, 0},
    {"test_eta_dist_warper 2", 4, {0.01f, 0.04f, 0.9f, 0.05f}, ETA, 0.0625f, {0, 0, 0.9}, 0},
};

/* Sets the parameter of a rule, which must outlive the row. */
static void set_parameter(program_row *row, uint8_t rule, const float *parameter, int32_t *top_k)
{
    static const float one = 1;
    *top_k = (int32_t)*parameter;
    switch (rule) {
    case T:
        row->sampling.temperature = same_f32(parameter);
        break;
    case MIN_P:
        row->truncation.min_p = same_f32(parameter);
        break;
    case TOP_K:
        row->truncation.top_k = same_i32(top_k);
        break;
    case TOP_P:
        row->truncation.top_p = same_f32(parameter);
        break;
    case TYPICAL:
        row->programs.typical_p = same_f32(parameter);
        break;
    case SIGMA:
        row->programs.top_n_sigma = same_f32(parameter);
        break;
    case EPSILON:
        row->programs.epsilon = same_f32(parameter);
        break;
    case ETA:
        row->programs.eta = same_f32(parameter);
        break;
    case XTC:
        row->programs.xtc_threshold = same_f32(parameter);
        row->programs.xtc_probability = same_f32(&one);
        break;
    default:
        break;
    }
}

/* z of a row with one rule and then TEMPERATURE; a rule TEMPERATURE is alone. */
static void process_rule(gumbel_device *device, const float *logits, int64_t count, uint8_t rule,
                         float parameter, int32_t min_keep, float *z)
{
    const uint8_t rules[2] = {rule, rule == T ? GUMBEL_PROGRAM_END : T};
    program_row row;
    int32_t top_k;
    set_program_row(&row, logits, count, rules, 2);
    set_parameter(&row, rule, &parameter, &top_k);
    if (min_keep)
        row.programs.min_keep = same_i32(&min_keep);
    assert_int_equal(request_process(device, &row.logits, &row.sampling, z), GUMBEL_OK);
}

static void published_cases(void **state)
{
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const published_case *at = &cases[k];
        float logits[MOST], z[MOST];
        double sum = 0, expected_sum = 0;
        for (int i = 0; i < at->count; i++) {
            logits[i] = logf(at->p[i]);
            expected_sum += at->expected[i];
        }
        process_rule(*state, logits, at->count, at->rule, at->parameter, at->min_keep, z);
        for (int i = 0; i < at->count; i++)
            sum += exp((double)z[i]);
        for (int i = 0; i < at->count; i++)
            if ((z[i] > -INFINITY) != (at->expected[i] > 0) ||
                fabs(exp((double)z[i]) / sum - at->expected[i] / expected_sum) > 1e-5)
                fail_msg("%s: token %d has %g, not %g", at->name, i, exp((double)z[i]) / sum,
                         at->expected[i] / expected_sum);
    }
}

/* test_logits_process.py: the logits -5 .. 4, and 100 times these, with min_tokens_to_keep = 2. */
static void ramps_with_min_keep(void **state)
{
    static const struct {
        uint8_t rule;
        float parameter;
        int kept, kept_of_steep;
    } ramps[] = {
        {TOP_P, 0.9f, 3, 2},    {MIN_P, 0.9f, 2, 2}, {TYPICAL, 0.7f, 2, 2},
        {EPSILON, 0.05f, 3, 2}, {ETA, 0.1f, 2, 2},
    };
    for (size_t k = 0; k < sizeof ramps / sizeof *ramps; k++)
        for (int steep = 0; steep < 2; steep++) {
            float logits[MOST], z[MOST];
            int kept = 0;
            for (int i = 0; i < MOST; i++)
                logits[i] = (float)(i - 5) * (steep ? 100 : 1);
            process_rule(*state, logits, MOST, ramps[k].rule, ramps[k].parameter, 2, z);
            for (int i = 0; i < MOST; i++)
                kept += z[i] > -INFINITY;
            assert_int_equal(kept, steep ? ramps[k].kept_of_steep : ramps[k].kept);
        }
}

/* test_logits_process.py, test_top_k_dist_warper: ramps with k = 3; the second one is shifted by 10
 * below its middle. */
static void top_k_of_ramps(void **state)
{
    for (int shifted = 0; shifted < 2; shifted++) {
        float logits[MOST], z[MOST];
        for (int i = 0; i < MOST; i++)
            logits[i] = (float)(i + (shifted && i < 5 ? 10 : 0));
        process_rule(*state, logits, MOST, TOP_K, 3, 0, z);
        for (int i = 0; i < MOST; i++)
            assert_int_equal(z[i] > -INFINITY, shifted ? i >= 2 && i < 5 : i >= 7);
    }
}

/* test-sampling.cpp, test_temp and test_temp_ext: T = 1 with a range of 0 changes nothing, and
 * T = 0 draws the most likely token. */
static void temperatures_of_llama(void **state)
{
    static const uint8_t rules[] = {T};
    static const float zero = 0, one = 1, p[] = {0.1f, 0.2f, 0.3f, 0.4f};
    float logits[4], z[4];
    program_row row;
    for (int i = 0; i < 4; i++)
        logits[i] = logf(p[i]);
    set_program_row(&row, logits, 4, rules, 1);
    row.programs.temperature_range = same_f32(&zero);
    row.programs.temperature_exponent = same_f32(&one);
    assert_int_equal(request_process(*state, &row.logits, &row.sampling, z), GUMBEL_OK);
    assert_memory_equal(z, logits, sizeof z);
    row.sampling.temperature = same_f32(&zero);
    outcome *drawn = outcome_make(1, 1);
    assert_int_equal(draw_logits(*state, &row.logits, &row.sampling, drawn), GUMBEL_OK);
    assert_int_equal(drawn->tokens[0], 3);
    outcome_free(drawn);
}

/* ------------------------------------------------------------------------------ sequences ---- */

enum { QUEUE = 10000 };

/* A sequence of test_sampler_queue: token i has the weight i. */
typedef struct queue_case {
    const char *rules; /* k, p, m */
    int32_t top_k;
    float top_p, min_p;
} queue_case;

static const queue_case queues[] = {
    {"k", 10000, 1, 1},
    {"k", 1, 1, 1},
    {"p", 10000, 1, 1},
    {"p", 10000, 0x1p-149f, 1},
    {"m", 10000, 1, 1},
    {"m", 10000, 1, 1e-12f},
    {"k", 100, 1, 1},
    {"p", 10000, 0.0003f, 1},
    {"p", 10000, 0.8f, 1},
    {"m", 10000, 1, 9997.9f / 9999.0f},
    {"m", 10000, 1, 0.1f},
    {"kp", 100, 0.8f, 0.1f},
    {"km", 100, 0.8f, 0.1f},
    {"pk", 100, 0.8f, 0.1f},
    {"pm", 100, 0.8f, 0.1f},
    {"mk", 100, 0.8f, 0.1f},
    {"mp", 100, 0.8f, 9997.9f / 9999.0f},
    {"mp", 100, 0.8f, 0.1f},
    {"kpm", 100, 0.8f, 0.1f},
    {"kmp", 100, 0.8f, 0.1f},
    {"pkm", 100, 0.8f, 0.1f},
    {"pmk", 100, 0.8f, 0.1f},
    {"mkp", 100, 0.8f, 0.1f},
    {"mpk", 100, 0.8f, 0.1f},
};

/* The smallest token that remains, by whole numbers. */
static int64_t find_smallest_kept(const queue_case *q)
{
    int64_t low = 1;
    for (const char *rule = q->rules; *rule; rule++) {
        int64_t mass = 0, above = 0, end = QUEUE;
        for (int64_t i = low; i < QUEUE; i++)
            mass += i;
        if (*rule == 'k')
            end = QUEUE - q->top_k;
        else if (*rule == 'm')
            end = (int64_t)ceil((double)q->min_p * (QUEUE - 1));
        else
            while (end > low && (double)above < (double)q->top_p * (double)mass)
                above += --end;
        low = end > low ? end : low;
    }
    return low;
}

static void sequences_of_llama(void **state)
{
    float *logits = make_zeroed(QUEUE, sizeof *logits), *z = make_zeroed(QUEUE, sizeof *z);
    for (int i = 0; i < QUEUE; i++)
        logits[i] = logf((float)i);
    for (size_t k = 0; k < sizeof queues / sizeof *queues; k++) {
        const queue_case *q = &queues[k];
        const int64_t low = find_smallest_kept(q);
        uint8_t rules[GUMBEL_PROGRAM_LENGTH] = {0};
        const size_t length = strlen(q->rules);
        program_row row;
        for (size_t i = 0; i < length; i++)
            rules[i] = q->rules[i] == 'k' ? TOP_K : q->rules[i] == 'p' ? TOP_P : MIN_P;
        rules[length] = T;
        set_program_row(&row, logits, QUEUE, rules, length + 1);
        row.truncation.top_k = same_i32(&q->top_k);
        row.truncation.top_p = same_f32(&q->top_p);
        row.truncation.min_p = same_f32(&q->min_p);
        assert_int_equal(request_process(*state, &row.logits, &row.sampling, z), GUMBEL_OK);
        for (int64_t i = 0; i < QUEUE; i++)
            if ((z[i] > -INFINITY) != (i >= low))
                fail_msg("sequence %s, case %zu: token %d, smallest %d", q->rules, k, (int)i,
                         (int)low);
    }
    free(logits);
    free(z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_cases),    cmocka_unit_test(ramps_with_min_keep),
        cmocka_unit_test(top_k_of_ramps),     cmocka_unit_test(temperatures_of_llama),
        cmocka_unit_test(sequences_of_llama),
    };
    return cmocka_run_group_tests(tests, open_reference, close_device);
}
