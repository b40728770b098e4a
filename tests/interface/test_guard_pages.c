/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls access no byte outside their buffers and write no input. Every buffer is between two
 * inaccessible pages, adjacent to one of them, and inputs are read-only.
 */
#include "guard_pages.h"
#include "hostile.h"
#include "outcome.h"
#include "problem_plans.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "every_isa.h"

static gumbel_sampling guard_sampling(guard_set *f, gumbel_sampling s, size_t batch)
{
    s.temperature.data = guard_copy(f, s.temperature.data, batch * sizeof *s.temperature.data, 0);
    s.seed.data = guard_copy(f, s.seed.data, batch * sizeof *s.seed.data, 0);
    s.position.data = guard_copy(f, s.position.data, batch * sizeof *s.position.data, 0);
    s.first_sample.data =
        guard_copy(f, s.first_sample.data, batch * sizeof *s.first_sample.data, 0);
    return s;
}

static outcome guard_outcome(guard_set *f, int64_t batch, int32_t samples)
{
    size_t rows = (size_t)batch, draws = rows * (size_t)samples;
    outcome o = {.batch = batch, .samples = samples};
    o.tokens = guard_copy(f, NULL, draws * sizeof *o.tokens, 1);
    o.logprobs = guard_copy(f, NULL, draws * sizeof *o.logprobs, 1);
    o.scores = guard_copy(f, NULL, draws * sizeof *o.scores, 1);
    o.lse = guard_copy(f, NULL, rows * sizeof *o.lse, 1);
    o.status = guard_copy(f, NULL, rows * sizeof *o.status, 1);
    o.output = (gumbel_output){.struct_size = sizeof o.output,
                               .tokens = o.tokens,
                               .logprobs = o.logprobs,
                               .scores = o.scores,
                               .lse = o.lse,
                               .status = o.status};
    return o;
}

/* A workspace can be aligned and adjacent to a guard page because its size is a multiple of 64. */
static void *guard_workspace(guard_set *f, gumbel_device *device, int64_t batch,
                             int64_t hidden_size, int32_t samples, size_t *bytes)
{
    const gumbel_limits limits = {.struct_size = sizeof limits,
                                  .batch = batch,
                                  .hidden_size = hidden_size,
                                  .num_samples = samples};
    assert_int_equal(gumbel_workspace_most(device, &limits, bytes, NULL), GUMBEL_OK);
    assert_int_equal(*bytes % 64, 0);
    void *workspace = guard_copy(f, NULL, *bytes, 1);
    hostile_fill(workspace, *bytes);
    return workspace;
}

static void check_fused(gumbel_device *device, problem_plan plan, int at_front)
{
    problem *generated = problem_make(&plan);
    outcome *expected = outcome_make(plan.batch, generated->plan.samples);
    assert_int_equal(draw(device, &generated->head, &generated->sampling, expected), GUMBEL_OK);
    guard_set f = {.at_front = at_front};
    size_t bytes;
    gumbel_head head = generated->head;
    head.hidden = guard_tensor(&f, head.hidden);
    head.weight = guard_tensor(&f, head.weight);
    head.bias = guard_tensor(&f, head.bias);
    gumbel_sampling sampling = guard_sampling(&f, generated->sampling, (size_t)plan.batch);
    outcome found = guard_outcome(&f, plan.batch, generated->plan.samples);
    void *workspace =
        guard_workspace(&f, device, plan.batch, plan.hidden_size, generated->plan.samples, &bytes);
    assert_int_equal(
        gumbel_sample(device, NULL, &head, &sampling, &found.output, workspace, bytes, NULL),
        GUMBEL_OK);
    assert_true(outcome_same(expected, 0, &found, OUTCOME_ALL, problem_describe(&plan)));
    free_guard_set(&f);
    outcome_free(expected);
    problem_free(generated);
}

/* The weights of a plan as a matrix of logits. */
static void check_logits(gumbel_device *device, problem_plan plan, int at_front)
{
    problem *generated = problem_make(&plan);
    int64_t rows = generated->head.weight.rows;
    gumbel_logits logits = {.struct_size = sizeof logits, .logits = generated->head.weight};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .num_samples = generated->plan.samples};
    outcome *expected = outcome_make(rows, generated->plan.samples);
    assert_int_equal(draw_logits(device, &logits, &sampling, expected), GUMBEL_OK);
    guard_set f = {.at_front = at_front};
    size_t bytes;
    logits.logits = guard_tensor(&f, logits.logits);
    outcome found = guard_outcome(&f, rows, generated->plan.samples);
    void *workspace = guard_workspace(&f, device, rows, 0, generated->plan.samples, &bytes);
    assert_int_equal(gumbel_sample_logits(device, NULL, &logits, &sampling, &found.output,
                                          workspace, bytes, NULL),
                     GUMBEL_OK);
    assert_true(outcome_same(expected, 0, &found, OUTCOME_ALL, problem_describe(&plan)));
    free_guard_set(&f);
    outcome_free(expected);
    problem_free(generated);
}

static void calls_from_heads_stay_within_buffers(void **state)
{
    for (int at_front = 0; at_front <= 1; at_front++) {
        for (int i = 0; i < PLANS_BY_SIZE; i++)
            check_fused(*state, plan_by_size(i), at_front);
        for (int i = 0; i < PLANS_BY_VOCAB; i++)
            check_fused(*state, plan_by_vocab(i), at_front);
        for (int i = 0; i < 40; i++)
            check_fused(*state, plan_at_random(i), at_front);
    }
}

static void calls_from_logits_stay_within_buffers(void **state)
{
    for (int at_front = 0; at_front <= 1; at_front++) {
        for (int i = 0; i < PLANS_BY_SIZE; i++)
            check_logits(*state, plan_by_size(i), at_front);
        /* Every residue of V, which is the plan's D. */
        for (int64_t v = 1; v <= 130; v += TEST_SANITIZED ? 3 : 1)
            check_logits(*state,
                         (problem_plan){.batch = 1,
                                        .vocab = 3,
                                        .hidden_size = v,
                                        .samples = 2,
                                        .weight_dtype = (gumbel_dtype)(1 + v % 3),
                                        .seed = (uint64_t)v},
                         at_front);
    }
}

static void noise_stays_within_its_buffer(void **state)
{
    (void)state;
    for (int at_front = 0; at_front <= 1; at_front++)
        for (int64_t count = 0; count <= 130; count += TEST_SANITIZED ? 3 : 1)
            for (int64_t first = 0; first < 4; first++) {
                guarded_buffer g =
                    make_guarded_buffer(NULL, (size_t)count * sizeof(float), at_front, 1);
                assert_int_equal(gumbel_noise(1, 2, 3, 4, first, count, g.data, NULL), GUMBEL_OK);
                free_guarded_buffer(&g);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_from_heads_stay_within_buffers),
        cmocka_unit_test(calls_from_logits_stay_within_buffers),
        cmocka_unit_test(noise_stays_within_its_buffer),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
