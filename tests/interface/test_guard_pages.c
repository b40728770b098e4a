/* SPDX-License-Identifier: Apache-2.0
 *
 * No byte outside a buffer is touched, and no input is written: every buffer lies between two pages
 * that may not be accessed, flush against the one or the other, and inputs are read-only.
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

static gumbel_sampling sampling_inside(fence *f, gumbel_sampling s, size_t batch)
{
    s.temperature.data = inside(f, s.temperature.data, batch * sizeof *s.temperature.data, 0);
    s.seed.data = inside(f, s.seed.data, batch * sizeof *s.seed.data, 0);
    s.position.data = inside(f, s.position.data, batch * sizeof *s.position.data, 0);
    s.first_sample.data = inside(f, s.first_sample.data, batch * sizeof *s.first_sample.data, 0);
    return s;
}

static outcome outcome_inside(fence *f, int64_t batch, int32_t samples)
{
    size_t rows = (size_t)batch, draws = rows * (size_t)samples;
    outcome o = {.batch = batch, .samples = samples};
    o.tokens = inside(f, NULL, draws * sizeof *o.tokens, 1);
    o.logprobs = inside(f, NULL, draws * sizeof *o.logprobs, 1);
    o.scores = inside(f, NULL, draws * sizeof *o.scores, 1);
    o.lse = inside(f, NULL, rows * sizeof *o.lse, 1);
    o.status = inside(f, NULL, rows * sizeof *o.status, 1);
    o.output = (gumbel_output){.struct_size = sizeof o.output,
                               .tokens = o.tokens,
                               .logprobs = o.logprobs,
                               .scores = o.scores,
                               .lse = o.lse,
                               .status = o.status};
    return o;
}

/* Sizes of workspaces are multiples of 64, so that one can be flush and aligned. */
static void *workspace_inside(fence *f, gumbel_device *device, int64_t batch, int64_t hidden_size,
                              int32_t samples, size_t *bytes)
{
    const gumbel_limits limits = {.struct_size = sizeof limits,
                                  .batch = batch,
                                  .hidden_size = hidden_size,
                                  .num_samples = samples};
    assert_int_equal(gumbel_workspace_most(device, &limits, bytes, NULL), GUMBEL_OK);
    assert_int_equal(*bytes % 64, 0);
    void *workspace = inside(f, NULL, *bytes, 1);
    hostile_fill(workspace, *bytes);
    return workspace;
}

static void check_fused(gumbel_device *device, problem_plan plan, int at_front)
{
    problem *generated = problem_make(&plan);
    outcome *expected = outcome_make(plan.batch, generated->plan.samples);
    assert_int_equal(draw(device, &generated->head, &generated->sampling, expected), GUMBEL_OK);
    fence f = {.at_front = at_front};
    size_t bytes;
    gumbel_head head = generated->head;
    head.hidden = tensor_inside(&f, head.hidden);
    head.weight = tensor_inside(&f, head.weight);
    head.bias = tensor_inside(&f, head.bias);
    gumbel_sampling sampling = sampling_inside(&f, generated->sampling, (size_t)plan.batch);
    outcome found = outcome_inside(&f, plan.batch, generated->plan.samples);
    void *workspace =
        workspace_inside(&f, device, plan.batch, plan.hidden_size, generated->plan.samples, &bytes);
    assert_int_equal(
        gumbel_sample(device, NULL, &head, &sampling, &found.output, workspace, bytes, NULL),
        GUMBEL_OK);
    assert_true(outcome_same(expected, 0, &found, OUTCOME_ALL, problem_describe(&plan)));
    take_down(&f);
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
    fence f = {.at_front = at_front};
    size_t bytes;
    logits.logits = tensor_inside(&f, logits.logits);
    outcome found = outcome_inside(&f, rows, generated->plan.samples);
    void *workspace = workspace_inside(&f, device, rows, 0, generated->plan.samples, &bytes);
    assert_int_equal(gumbel_sample_logits(device, NULL, &logits, &sampling, &found.output,
                                          workspace, bytes, NULL),
                     GUMBEL_OK);
    assert_true(outcome_same(expected, 0, &found, OUTCOME_ALL, problem_describe(&plan)));
    take_down(&f);
    outcome_free(expected);
    problem_free(generated);
}

static void guarded_plans(void **state)
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

static void guarded_logits(void **state)
{
    for (int at_front = 0; at_front <= 1; at_front++) {
        for (int i = 0; i < PLANS_BY_SIZE; i++)
            check_logits(*state, plan_by_size(i), at_front);
        /* V of every residue: D of the plan is V of the logits. */
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

static void guarded_noise(void **state)
{
    (void)state;
    for (int at_front = 0; at_front <= 1; at_front++)
        for (int64_t count = 0; count <= 130; count += TEST_SANITIZED ? 3 : 1)
            for (int64_t first = 0; first < 4; first++) {
                guarded g = guard(NULL, (size_t)count * sizeof(float), at_front, 1);
                assert_int_equal(gumbel_noise(1, 2, 3, 4, first, count, g.data, NULL), GUMBEL_OK);
                unguard(&g);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guarded_plans),
        cmocka_unit_test(guarded_logits),
        cmocka_unit_test(guarded_noise),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
