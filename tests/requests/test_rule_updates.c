/* SPDX-License-Identifier: Apache-2.0
 *
 * Row parameters that change from step to step: mirostat 2 over a thousand steps of draws, compared
 * with the rule in double; the decay of top_p; slots and rows that are not live; every error.
 */
#include "fixtures.h"
#include "requests.h"

#include "gumbel/programs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 3, VOCAB = 500, STEPS = 1000 };

static gumbel_device *device;

static gumbel_status update(const gumbel_rule_updates *updates, gumbel_error *error)
{
    return gumbel_update_rules(device, NULL, updates, error);
}

/* The values of a mirostat text: mu of the library, and in double. */
typedef struct mirostat {
    float mu[ROWS], target[ROWS], rate;
    double expected[ROWS], surprise; /* sum of the surprise of row 0's tokens */
} mirostat;

/* Draws one step from logits that change with the step, and updates mu. */
static void run_step(mirostat *m, int step)
{
    static const uint8_t rules[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_TEMPERATURE,
                                                         GUMBEL_PROGRAM_SURPRISE};
    float logits[ROWS * VOCAB], logprobs[ROWS];
    int32_t tokens[ROWS], kept[ROWS];
    uint64_t random = 77 + (uint64_t)step, position = (uint64_t)step, seed = 5;
    static unsigned char workspace[1 << 20] __attribute__((aligned(64)));
    gumbel_error error = {"", ""};
    for (int i = 0; i < ROWS * VOCAB; i++)
        logits[i] = -6.0f * (float)random_below(&random, 1000) / 1000;
    gumbel_programs programs = {
        .struct_size = sizeof programs, .rules = rules, .count = 1, .surprise = {m->mu, 1}};
    gumbel_truncation truncation = {.struct_size = sizeof truncation, .programs = &programs};
    gumbel_logits in = {.struct_size = sizeof in,
                        .logits = {.data = logits, GUMBEL_FLOAT32, ROWS, VOCAB, 0, {0}}};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .seed = {&seed, GUMBEL_SAME},
                           .position = {&position, GUMBEL_SAME},
                           .truncation = &truncation};
    gumbel_output out = {
        .struct_size = sizeof out, .tokens = tokens, .logprobs = logprobs, .kept = kept};
    gumbel_rule_updates updates = {.struct_size = sizeof updates,
                                   .batch = ROWS,
                                   .tokens = tokens,
                                   .logprobs = logprobs,
                                   .surprise = m->mu,
                                   .surprise_target = {m->target, 1},
                                   .surprise_rate = {&m->rate, GUMBEL_SAME}};
    assert_int_equal(
        gumbel_sample_logits(device, NULL, &in, &how, &out, workspace, sizeof workspace, &error),
        GUMBEL_OK);
    assert_int_equal(update(&updates, &error), GUMBEL_OK);
    for (int b = 0; b < ROWS; b++) {
        const double bits = -(double)logprobs[b] / log(2.0);
        m->expected[b] = fmax(m->expected[b] - (double)m->rate * (bits - (double)m->target[b]), 0);
        assert_true(fabs((double)m->mu[b] - m->expected[b]) < 1e-4 * (1 + m->expected[b]));
        m->expected[b] = (double)m->mu[b]; /* errors must not add up */
    }
    m->surprise += -(double)logprobs[0] / log(2.0);
}

/* mu follows the rule at each step, and the mean surprise comes close to the target. */
static void mirostat_follows_its_rule(void **state)
{
    mirostat m = {.target = {3, 5, 0.5f}, .rate = 0.1f};
    (void)state;
    for (int b = 0; b < ROWS; b++)
        m.expected[b] = (double)(m.mu[b] = 2 * m.target[b]);
    for (int step = 0; step < STEPS; step++)
        run_step(&m, step);
    assert_true(fabs(m.surprise / STEPS - 3) < 0.1);
}

/* Three steps of top_p: decay, its lower limit, and the reset. */
static void top_p_decays(void **state)
{
    float top_p[2] = {0.9f, 0.5f};
    const float first = 0.9f, decay = 0.5f, least = 0.3f;
    const int32_t reset = 7;
    int32_t tokens[2] = {1, 7};
    gumbel_rule_updates updates = {.struct_size = sizeof updates,
                                   .batch = 2,
                                   .tokens = tokens,
                                   .top_p = top_p,
                                   .top_p_first = {&first, GUMBEL_SAME},
                                   .top_p_decay = {&decay, GUMBEL_SAME},
                                   .top_p_min = {&least, GUMBEL_SAME},
                                   .top_p_reset = {&reset, GUMBEL_SAME}};
    (void)state;
    assert_int_equal(update(&updates, NULL), GUMBEL_OK);
    assert_true(top_p[0] == 0.45f && top_p[1] == 0.9f);
    tokens[1] = -1; /* no token was drawn */
    assert_int_equal(update(&updates, NULL), GUMBEL_OK);
    assert_true(top_p[0] == 0.3f && top_p[1] == 0.9f);
    tokens[0] = 7;
    assert_int_equal(update(&updates, NULL), GUMBEL_OK);
    assert_true(top_p[0] == 0.9f && top_p[1] == 0.9f);
}

/* Rows have the values of their slots; rows that are not live keep theirs. */
static void slots_and_live_rows(void **state)
{
    float top_p[4] = {1, 1, 1, 1};
    const float decay[4] = {0.5f, 0.25f, 0.125f, 0.75f};
    const int32_t tokens[3] = {0, 0, 0}, slots[3] = {3, 0, 1}, live = 2;
    gumbel_rule_updates updates = {.struct_size = sizeof updates,
                                   .batch = 3,
                                   .tokens = tokens,
                                   .slots = {slots, 4},
                                   .live_rows = &live,
                                   .top_p = top_p,
                                   .top_p_decay = {decay, 1}};
    const float expected[4] = {0.5f, 1, 1, 0.75f};
    (void)state;
    assert_int_equal(update(&updates, NULL), GUMBEL_OK);
    assert_memory_equal(top_p, expected, sizeof top_p);
}

/* Calls with one invalid field, and the field that the error names. */
static void bad_updates_are_refused(void **state)
{
    float values[2] = {1, 1};
    const float bad = -1, over = 2;
    const int32_t tokens[2] = {0, 0}, slot = 5, live = 3;
    const gumbel_rule_updates good = {.struct_size = sizeof good,
                                      .batch = 2,
                                      .tokens = tokens,
                                      .logprobs = values,
                                      .surprise = values,
                                      .surprise_target = {values, 1}};
    gumbel_rule_updates calls[10];
    static const char *const fields[10] = {"updates.batch",
                                           "updates.tokens",
                                           "updates.logprobs",
                                           "updates.surprise_target",
                                           "updates.surprise_stride",
                                           "updates.token_stride",
                                           "updates.surprise_rate[0]",
                                           "updates.top_p_decay[0]",
                                           "updates.slots",
                                           "updates.live_rows"};
    (void)state;
    for (int i = 0; i < 10; i++)
        calls[i] = good;
    calls[0].batch = -1;
    calls[1].tokens = NULL;
    calls[2].logprobs = NULL;
    calls[3].surprise_target.data = NULL;
    calls[3].surprise_target.stride = 0;
    calls[4].surprise_stride = GUMBEL_SAME;
    calls[5].token_stride = GUMBEL_SAME;
    calls[6].surprise_rate = (gumbel_row_f32){&bad, GUMBEL_SAME};
    calls[7].top_p_decay = (gumbel_row_f32){&over, GUMBEL_SAME};
    calls[8].slots = (gumbel_slots){&slot, 4};
    calls[8].batch = 1;
    calls[9].live_rows = &live;
    for (int i = 0; i < 10; i++) {
        gumbel_error error = {"", ""};
        assert_int_equal(update(&calls[i], &error), GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, fields[i]);
    }
    assert_true(values[0] == 1 && values[1] == 1);
    assert_int_equal(gumbel_update_rules(NULL, NULL, &good, NULL), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(update(NULL, NULL), GUMBEL_ERROR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mirostat_follows_its_rule),
        cmocka_unit_test(top_p_decays),
        cmocka_unit_test(slots_and_live_rows),
        cmocka_unit_test(bad_updates_are_refused),
    };
    device = open_device(GUMBEL_ISA_AUTO, 1, 0);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gumbel_close(device);
    return failed;
}
