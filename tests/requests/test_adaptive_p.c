/* SPDX-License-Identifier: Apache-2.0
 *
 * ADAPTIVE_P: z by llama.cpp's formula in double, and by hand; rows in which it is off; a thousand
 * steps of draws whose target adapts, compared with a slow reference that keeps the state in double
 * and computes each token's probability from the logits; the ends of the update's parameters, and
 * every error.
 */
#include "program_row.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "every_isa.h"

enum { ROWS = 4, VOCAB = 300, STEPS = 1000 };

static const uint8_t alone[] = {GUMBEL_PROGRAM_TEMPERATURE, GUMBEL_PROGRAM_ADAPTIVE_P};

/* -------------------------------------------------------------------------------- values ---- */

/* llama.cpp's logit of a token of probability p. */
static double adapt_in_double(double p, double target)
{
    const double distance = fabs(p - target) / 0.3;
    return 5 - 10 * distance * distance / (1 + distance);
}

static void process_row(gumbel_device *device, const program_row *row, float *z)
{
    assert_int_equal(request_process(device, &row->logits, &row->sampling, z), GUMBEL_OK);
}

static void values_have_llama_cpps_formula(void **state)
{
    static const float targets[] = {0, 0.05f, 0.3f, 0.5f, 0.77f, 1};
    static const float spreads[] = {0.1f, 1, 3, 30};
    float logits[VOCAB], z[VOCAB];
    uint64_t random = 3;
    for (int k = 0; k < 24; k++) {
        program_row row;
        double largest = -INFINITY, mass = 0;
        for (int i = 0; i < VOCAB; i++) {
            logits[i] = i % 7 == 6 ? -INFINITY : spreads[k % 4] * random_normal(&random);
            largest = fmax(largest, (double)logits[i]);
        }
        for (int i = 0; i < VOCAB; i++)
            mass += exp((double)logits[i] - largest);
        set_program_row(&row, logits, VOCAB, alone, sizeof alone);
        row.programs.adaptive_target = same_f32(&targets[k / 4]);
        process_row(*state, &row, z);
        for (int i = 0; i < VOCAB; i++) {
            const double p = exp((double)logits[i] - largest) / mass;
            if (logits[i] == -INFINITY)
                assert_true(z[i] == -INFINITY);
            else
                assert_true(fabs((double)z[i] - adapt_in_double(p, (double)targets[k / 4])) < 2e-5);
        }
    }
}

/* z at the target, at a distance of 0.3, and at the largest distance. */
static void values_by_hand(void **state)
{
    static const float equal[] = {2, 2}, far[] = {0, -200};
    static const float half = 0.5f, fifth = 0.2f, one = 1, zero = 0;
    static const struct {
        const float *logits, *target;
        double expected[2];
    } cases[] = {
        {equal, &half, {5, 5}},
        {equal, &fifth, {0, 0}},
        {far, &one, {5, 5 - 1000.0 / 39}},
        {far, &zero, {5 - 1000.0 / 39, 5}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        program_row row;
        float z[2];
        set_program_row(&row, cases[k].logits, 2, alone, sizeof alone);
        row.programs.adaptive_target = same_f32(cases[k].target);
        process_row(*state, &row, z);
        assert_true(fabs((double)z[0] - cases[k].expected[0]) < 1e-5);
        assert_true(fabs((double)z[1] - cases[k].expected[1]) < 1e-5);
    }
}

/* A target below 0 changes no value; the probabilities are those after the temperature and after
 * the rules before it. */
static void rules_before_it(void **state)
{
    static const uint8_t rules[] = {GUMBEL_PROGRAM_TOP_K, GUMBEL_PROGRAM_TEMPERATURE,
                                    GUMBEL_PROGRAM_ADAPTIVE_P};
    static const float logits[] = {1, -5, 2, 0.5f}, half = 0.5f, targets[] = {-1, -0x1p-149f, 0.3f};
    static const int32_t two = 2;
    const double p = 1 / (1 + exp(-2.0));
    for (int k = 0; k < 3; k++) {
        program_row row;
        float z[4];
        set_program_row(&row, logits, 4, rules, sizeof rules);
        row.sampling.temperature = same_f32(&half);
        row.truncation.top_k = same_i32(&two);
        row.programs.adaptive_target = same_f32(&targets[k]);
        process_row(*state, &row, z);
        assert_true(z[1] == -INFINITY && z[3] == -INFINITY);
        if (k < 2)
            assert_true(z[0] == 2 && z[2] == 4);
        else
            assert_true(fabs((double)z[2] - adapt_in_double(p, 0.3)) < 1e-5 &&
                        fabs((double)z[0] - adapt_in_double(1 - p, 0.3)) < 1e-5);
    }
}

/* --------------------------------------------------------------------------- a decode loop ---- */

/* The state of the rows: the library's, and the reference's in double. */
typedef struct adaptation {
    float target[ROWS], sum[ROWS], weight[ROWS];
    double sums[ROWS], weights[ROWS];
    double drawn[ROWS]; /* sums of the drawn tokens' probabilities */
} adaptation;

static const float goals[ROWS] = {0.3f, 0.5f, 0.1f, -1}, decays[ROWS] = {0.9f, 0.99f, 0, 0.5f};

static void start_rows(adaptation *a)
{
    *a = (adaptation){.drawn = {0}};
    for (int b = 0; b < ROWS; b++) {
        a->target[b] = goals[b];
        a->sum[b] = goals[b] / (1 - decays[b]);
        a->weight[b] = 1 / (1 - decays[b]);
        a->sums[b] = (double)goals[b] / (1 - (double)decays[b]);
        a->weights[b] = 1 / (1 - (double)decays[b]);
    }
}

/* Draws a token of each row, or with `given` scores these tokens. */
static void sample_rows(gumbel_device *device, const float *logits, const float *target, int step,
                        const int32_t *given, int32_t *tokens, float *logprobs)
{
    static const uint8_t rules[] = {GUMBEL_PROGRAM_MIN_P, GUMBEL_PROGRAM_TEMPERATURE,
                                    GUMBEL_PROGRAM_ADAPTIVE_P};
    static const float min_p = 0.02f;
    static unsigned char workspace[1 << 20] __attribute__((aligned(64)));
    const uint64_t seed = 8, position = (uint64_t)step;
    program_row row;
    set_program_row(&row, logits, VOCAB, rules, sizeof rules);
    row.logits.logits.rows = ROWS;
    row.truncation.min_p = same_f32(&min_p);
    row.programs.adaptive_target = (gumbel_row_f32){target, 0};
    row.sampling.seed = (gumbel_row_u64){&seed, GUMBEL_SAME};
    row.sampling.position = (gumbel_row_u64){&position, GUMBEL_SAME};
    row.sampling.given = (gumbel_row_i32){given, 0};
    const gumbel_output out = {.struct_size = sizeof out, .tokens = tokens, .logprobs = logprobs};
    assert_int_equal(gumbel_sample_logits(device, NULL, &row.logits, &row.sampling, &out, workspace,
                                          sizeof workspace, NULL),
                     GUMBEL_OK);
}

/* The probability of a token among those that MIN_P keeps. */
static double find_probability(const float *logits, int32_t token)
{
    double largest = -INFINITY, mass = 0;
    for (int i = 0; i < VOCAB; i++)
        largest = fmax(largest, (double)logits[i]);
    for (int i = 0; i < VOCAB; i++) {
        const double e = exp((double)logits[i] - largest);
        mass += e >= 0.02 ? e : 0;
    }
    return exp((double)logits[token] - largest) / mass;
}

/* Adds a row's token to the reference, and compares the next target. */
static void follow_row(adaptation *a, int b, double p)
{
    a->sums[b] = p + (double)decays[b] * a->sums[b];
    a->weights[b] = 1 + (double)decays[b] * a->weights[b];
    a->drawn[b] += p;
    const double target = 2 * (double)goals[b] - a->sums[b] / a->weights[b];
    const double expected = goals[b] < 0 ? -1 : fmin(fmax(target, 0), 1);
    assert_true(fabs((double)a->target[b] - expected) < 1e-5);
}

static void run_step(gumbel_device *device, adaptation *a, int step)
{
    float logits[ROWS * VOCAB], logprobs[ROWS];
    int32_t tokens[ROWS], scored[ROWS];
    uint64_t random = 90 + (uint64_t)step;
    for (int i = 0; i < ROWS * VOCAB; i++)
        logits[i] = 2 * random_normal(&random);
    for (int i = 0; i < ROWS * 4; i++) /* some likely tokens */
        logits[i / 4 * VOCAB + i % 4 * 9] = 4 + (float)random_below(&random, 4);
    sample_rows(device, logits, a->target, step, NULL, tokens, NULL);
    sample_rows(device, logits, NULL, step, tokens, scored, logprobs);
    const gumbel_rule_updates updates = {.struct_size = sizeof updates,
                                         .batch = ROWS,
                                         .tokens = tokens,
                                         .logprobs = logprobs,
                                         .adaptive_target = a->target,
                                         .adaptive_sum = a->sum,
                                         .adaptive_weight = a->weight,
                                         .adaptive_goal = {goals, 1},
                                         .adaptive_decay = {decays, 1}};
    assert_int_equal(gumbel_update_rules(device, NULL, &updates, NULL), GUMBEL_OK);
    for (int b = 0; b < ROWS; b++)
        follow_row(a, b, find_probability(logits + b * VOCAB, tokens[b]));
}

/* The target follows the reference at each step, and a higher goal draws likelier tokens. */
static void targets_follow_a_slow_reference(void **state)
{
    adaptation a;
    start_rows(&a);
    for (int step = 0; step < STEPS; step++)
        run_step(*state, &a, step);
    assert_true(a.drawn[1] - a.drawn[0] > 0.02 * STEPS && a.drawn[0] - a.drawn[2] > 0.1 * STEPS);
}

/* ------------------------------------------------------------------------------- updates ---- */

/* Logarithms that are no log-probabilities, limits of the target, slots, and rows without a token
 * or not live. */
static void ends_of_updates(void **state)
{
    enum { SLOTS = 7, COUNT = 6 };
    const float logprobs[COUNT] = {0, -INFINITY, NAN, 3, -0.69314718f, 0};
    const int32_t tokens[COUNT] = {1, 1, 1, 1, 1, -1}, slots[COUNT] = {6, 5, 4, 3, 2, 1};
    const int32_t live = COUNT;
    float target[SLOTS], sum[SLOTS], weight[SLOTS];
    const float goal[SLOTS] = {0.5f, 0.5f, 0.5f, 0.25f, 1, 1, 0}, decay = 0;
    /* By slot: with a decay of 0 the sum is the last probability. */
    const float expected_sum[SLOTS] = {7, 7, 0.5f, 1, 1, 0, 1};
    const float expected_target[SLOTS] = {7, 7, 0.5f, 0, 1, 1, 0};
    for (int i = 0; i < SLOTS; i++)
        target[i] = sum[i] = weight[i] = 7;
    const gumbel_rule_updates updates = {.struct_size = sizeof updates,
                                         .batch = COUNT,
                                         .tokens = tokens,
                                         .logprobs = logprobs,
                                         .slots = {slots, SLOTS},
                                         .live_rows = &live,
                                         .adaptive_target = target,
                                         .adaptive_sum = sum,
                                         .adaptive_weight = weight,
                                         .adaptive_goal = {goal, 1},
                                         .adaptive_decay = {&decay, GUMBEL_SAME}};
    assert_int_equal(gumbel_update_rules(*state, NULL, &updates, NULL), GUMBEL_OK);
    for (int i = 0; i < SLOTS; i++) {
        assert_true(fabsf(sum[i] - expected_sum[i]) < 1e-6f);
        assert_true(fabsf(target[i] - expected_target[i]) < 1e-6f);
        assert_true(weight[i] == (i < 2 ? 7.0f : 1.0f));
    }
}

static void bad_updates_are_refused(void **state)
{
    enum { CALLS = 12 };
    float values[3][2] = {{1, 1}, {1, 1}, {1, 1}};
    const int32_t tokens[2] = {0, 0};
    const float over = 1.5f, below = -1.5f, near_1 = 0.995f, negative = -0x1p-149f;
    const gumbel_rule_updates good = {.struct_size = sizeof good,
                                      .batch = 2,
                                      .tokens = tokens,
                                      .logprobs = values[0],
                                      .adaptive_target = values[0],
                                      .adaptive_sum = values[1],
                                      .adaptive_weight = values[2],
                                      .adaptive_goal = {values[0], 1}};
    static const char *const fields[CALLS] = {"updates.logprobs",
                                              "updates.adaptive_sum",
                                              "updates.adaptive_weight",
                                              "updates.adaptive_goal",
                                              "updates.adaptive_target",
                                              "updates.adaptive_target_stride",
                                              "updates.adaptive_sum_stride",
                                              "updates.adaptive_weight_stride",
                                              "updates.adaptive_goal[0]",
                                              "updates.adaptive_goal[0]",
                                              "updates.adaptive_decay[0]",
                                              "updates.adaptive_decay[0]"};
    gumbel_rule_updates calls[CALLS];
    for (int i = 0; i < CALLS; i++)
        calls[i] = good;
    calls[0].logprobs = NULL;
    calls[1].adaptive_sum = NULL;
    calls[2].adaptive_weight = NULL;
    calls[3].adaptive_goal = (gumbel_row_f32){NULL, 0};
    calls[4].surprise = values[1];
    calls[4].surprise_target = (gumbel_row_f32){values[2], 1};
    calls[5].adaptive_target_stride = GUMBEL_SAME;
    calls[6].adaptive_sum_stride = GUMBEL_SAME;
    calls[7].adaptive_weight_stride = GUMBEL_SAME;
    calls[8].adaptive_goal = same_f32(&over);
    calls[9].adaptive_goal = same_f32(&below);
    calls[10].adaptive_decay = same_f32(&near_1);
    calls[11].adaptive_decay = same_f32(&negative);
    for (int i = 0; i < CALLS; i++) {
        gumbel_error error = {"", ""};
        assert_int_equal(gumbel_update_rules(*state, NULL, &calls[i], &error),
                         GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, fields[i]);
    }
    for (int i = 0; i < 6; i++)
        assert_true(values[i / 2][i % 2] == 1);
}

int main(void)
{
    int failures;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_have_llama_cpps_formula),
        cmocka_unit_test(values_by_hand),
        cmocka_unit_test(rules_before_it),
        cmocka_unit_test(targets_follow_a_slow_reference),
        cmocka_unit_test(ends_of_updates),
        cmocka_unit_test(bad_updates_are_refused),
    };
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
