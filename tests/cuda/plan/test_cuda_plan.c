/* SPDX-License-Identifier: Apache-2.0
 *
 * The rungs that the CUDA backend plans for a call on an H200 and on an A100.
 */
#include "planned_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { K = 1, P = 2, MIN_P = 4, JOINT = 8, EXACT = 16, LAST = 32 };
#define KEPT_SETS (GUMBEL_FEATURE_KEPT | GUMBEL_FEATURE_KEPT_IDS)

static const struct call {
    const char *what;
    int64_t batch, hidden_size;
    uint32_t request;
    int cuts, mass, samples, noise, history;
    const char *hopper, *ampere; /* the product and the rows that serve it */
} calls[] = {
    {"plain, head", 32, 4096, 0, 0, 0, 1, 0, 0, "hopper", "tensor"},
    {"plain, odd D", 32, 4097, 0, 0, 0, 1, 0, 0, "naive", "naive"},
    {"log-probabilities, head", 32, 4096, 0, 0, 1, 1, 0, 0, "hopper", "tensor"},
    {"given noise, head", 32, 4096, 0, 0, 0, 1, 1, 0, "hopper draw", "tensor draw"},
    {"plain, logits", 32, 0, 0, 0, 0, 1, 0, 0, "draw", "draw"},
    {"mask, logits", 32, 0, GUMBEL_FEATURE_MASK, 0, 0, 1, 0, 0, "draw-edits", "draw-edits"},
    {"history, logits", 32, 0, GUMBEL_FEATURE_PENALTIES, 0, 0, 1, 0, 1, "draw-edits", "draw-edits"},
    {"lists of outputs", 32, 0, GUMBEL_FEATURE_PENALTIES, 0, 0, 1, 0, 0, "edit", "edit"},
    {"mask, lse", 32, 0, GUMBEL_FEATURE_MASK, 0, 1, 1, 0, 0, "edit", "edit"},
    {"banned, head", 32, 4096, GUMBEL_FEATURE_BANNED, 0, 0, 1, 0, 0, "hopper-statistics",
     "tensor edit"},
    {"k, head, 32", 32, 4096, 0, K, 0, 1, 0, 0, "hopper bounded", "tensor blocks-grid"},
    {"k and p, head, 5", 5, 4096, 0, K | P, 0, 1, 0, 0, "hopper bounded", "tensor grid"},
    {"k, head, 4", 4, 4096, 0, K, 0, 1, 0, 0, "hopper blocks", "tensor grid"},
    {"k, head, 256", 256, 4096, 0, K, 0, 1, 0, 0, "hopper blocks", "tensor blocks-grid"},
    {"k, logits, 17", 17, 0, 0, K, 0, 1, 0, 0, "blocks", "blocks-grid"},
    {"k, logits, 14", 14, 0, 0, K, 0, 1, 0, 0, "cluster", "blocks-grid"},
    {"k, logits, 13", 13, 0, 0, K, 0, 1, 0, 0, "cluster", "grid"},
    {"min_p, logits", 32, 0, 0, MIN_P, 1, 4, 0, 0, "blocks", "blocks-grid"},
    {"min_p and penalties, head", 32, 4096, GUMBEL_FEATURE_PENALTIES, MIN_P, 1, 1, 0, 1,
     "hopper bounded", "tensor blocks-grid"},
    {"k and min_p, logits", 32, 0, 0, K | MIN_P, 0, 1, 0, 0, "blocks", "blocks-grid"},
    {"joint, logits", 32, 0, 0, K | P | JOINT, 0, 1, 0, 0, "cluster", "grid"},
    {"min_p last, logits", 32, 0, 0, K | P | MIN_P | LAST, 0, 1, 0, 0, "blocks", "blocks-grid"},
    {"min_p last, head", 32, 4096, 0, K | P | MIN_P | LAST, 0, 1, 0, 0, "hopper bounded",
     "tensor blocks-grid"},
    {"p of all, min_p last", 32, 0, 0, P | MIN_P | LAST, 0, 1, 0, 0, "cluster", "grid"},
    {"p, and min_p last", 32, 0, 0, P | LAST, 0, 1, 0, 0, "pivots", "pivots"},
    {"exact ties", 32, 0, 0, K | EXACT, 0, 1, 0, 0, "blocks", "blocks-grid"},
    {"p, logits", 32, 0, 0, P, 0, 1, 0, 0, "pivots", "pivots"},
    {"p, head", 32, 4096, 0, P, 0, 1, 0, 0, "hopper pivots", "tensor pivots"},
    {"p, exact ties", 32, 0, 0, P | EXACT, 0, 1, 0, 0, "cluster", "grid"},
    {"p, two samples", 32, 0, 0, P, 0, 2, 0, 0, "cluster", "grid"},
    {"p, lse", 32, 0, 0, P, 1, 1, 0, 0, "cluster", "grid"},
    {"ranks", 32, 0, GUMBEL_FEATURE_RANKS, 0, 0, 1, 0, 0, "cluster", "grid"},
    {"given, head", 256, 4096, GUMBEL_FEATURE_GIVEN, 0, 1, 1, 0, 0, "hopper cluster",
     "tensor grid"},
    {"given, k, logits", 32, 0, GUMBEL_FEATURE_GIVEN, K, 1, 1, 0, 0, "cluster", "grid"},
    {"allowed, logits", 32, 0, GUMBEL_FEATURE_ALLOWED, 0, 0, 1, 0, 0, "draw-edits", "draw-edits"},
    {"best scores, logits", 32, 0, GUMBEL_FEATURE_BEST, 0, 0, 1, 0, 0, "cluster", "grid"},
    {"best scores, k, head", 8, 4096, GUMBEL_FEATURE_BEST, K, 0, 1, 0, 0, "hopper cluster",
     "tensor grid"},
    {"entropy, logits", 32, 0, GUMBEL_FEATURE_ENTROPY, 0, 1, 1, 0, 0, "draw", "draw"},
    {"entropy, head", 32, 4096, GUMBEL_FEATURE_ENTROPY, 0, 0, 1, 0, 0, "hopper-statistics",
     "tensor draw"},
    {"entropy, k, head", 32, 4096, GUMBEL_FEATURE_ENTROPY, K, 0, 1, 0, 0, "hopper bounded",
     "tensor blocks-grid"},
    {"entropy, k, logits", 32, 0, GUMBEL_FEATURE_ENTROPY, K, 1, 1, 0, 0, "blocks", "blocks-grid"},
    {"entropy, k, 8 rows", 8, 0, GUMBEL_FEATURE_ENTROPY, K, 1, 1, 0, 0, "cluster", "grid"},
    {"entropy, p", 32, 0, GUMBEL_FEATURE_ENTROPY, P, 0, 1, 0, 0, "cluster", "grid"},
    {"raw entropy, k, logits", 32, 0, GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_RAW, K, 1, 1, 0, 0,
     "cluster", "grid"},
    {"entropy, program", 32, 0, GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_PROGRAM, 0, 0, 1, 0, 0,
     "program", "program-grid"},
    {"entropy, raw logits", 32, 0, GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_RAW, 0, 0, 1, 0, 0,
     "cluster", "grid"},
    {"kept sets, k, head", 32, 4096, KEPT_SETS, K, 1, 1, 0, 0, "hopper bounded",
     "tensor blocks-grid"},
    {"kept sets, p", 32, 0, KEPT_SETS, P, 1, 1, 0, 0, "cluster", "grid"},
    {"kept sets, given", 32, 0, KEPT_SETS | GUMBEL_FEATURE_GIVEN, K, 1, 1, 0, 0, "cluster", "grid"},
    {"kept sets, program", 32, 0, KEPT_SETS | GUMBEL_FEATURE_PROGRAM, 0, 1, 1, 0, 0, "program",
     "program-grid"},
    {"raw, k", 32, 0, GUMBEL_FEATURE_RAW, K, 0, 1, 0, 0, "cluster", "grid"},
    {"program, logits", 32, 0, GUMBEL_FEATURE_PROGRAM, 0, 0, 1, 0, 0, "program-pivots",
     "program-pivots-grid"},
    {"program, lse", 32, 0, GUMBEL_FEATURE_PROGRAM, 0, 1, 1, 0, 0, "program", "program-grid"},
    {"program, head", 32, 4096, GUMBEL_FEATURE_PROGRAM, 0, 1, 2, 1, 0, "hopper program",
     "tensor program-grid"},
    {"late bias, logits", 32, 0, GUMBEL_FEATURE_LATE_BIAS, 0, 0, 1, 0, 0, "edit", "edit"},
    {"banned, samples, head", 32, 4096, GUMBEL_FEATURE_BANNED, 0, 0, 2, 0, 0, "hopper edit",
     "tensor edit"},
    {"entropy, top, banned, head", 2048, 4096,
     GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_TOP | GUMBEL_FEATURE_BANNED, 0, 1, 1, 0, 0,
     "hopper-statistics", "tensor grid"},
    {"raw entropy, head", 32, 4096, GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_RAW, 0, 1, 1, 0, 0,
     "hopper cluster", "tensor grid"},
};

static gumbel_problem problem_of(const struct call *c)
{
    gumbel_problem p = plan_problem(c->batch, c->hidden_size, c->request);
    p.features |= c->cuts ? GUMBEL_FEATURE_TRUNCATION : 0;
    p.truncation.top_k.data = c->cuts & K ? (int32_t *)plan_data : NULL;
    p.truncation.top_p.data = c->cuts & P ? (float *)plan_data : NULL;
    p.truncation.min_p.data = c->cuts & MIN_P ? (float *)plan_data : NULL;
    p.truncation.order = c->cuts & JOINT  ? GUMBEL_ORDER_JOINT
                         : c->cuts & LAST ? GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE
                                          : GUMBEL_ORDER_MIN_P_TOP_K_TOP_P;
    p.truncation.ties = c->cuts & EXACT ? GUMBEL_TIES_EXACT : GUMBEL_TIES_ALL;
    p.with_mass = c->mass;
    p.sampling.num_samples = c->samples;
    p.sampling.noise = c->noise ? (float *)plan_data : NULL;
    p.history.prompt = c->history ? (uint32_t *)plan_data : NULL;
    return p;
}

static void calls_select_rungs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const cuda_device hopper = plan_device(1), ampere = plan_device(0);
        gumbel_problem p = problem_of(&calls[i]);
        assert_string_equal(plan_rungs(&hopper, &p, 0), calls[i].hopper);
        assert_string_equal(plan_rungs(&ampere, &p, 0), calls[i].ampere);
    }
}

/* A call from a head whose rows allow few tokens. */
static gumbel_problem few_allowed(int64_t batch, int64_t hidden_size, uint32_t features)
{
    gumbel_problem p = plan_problem(batch, hidden_size, features);
    p.transforms.max_allowed = 1024;
    p.with_mass = 1;
    return p;
}

/* Only the weights of allowed tokens are multiplied if their number is known to be small. */
static void few_allowed_tokens_select_rungs(void **state)
{
    static const struct {
        int64_t batch, hidden_size;
        uint32_t features;
        const char *rungs;
    } cases[] = {
        {1, 4096, GUMBEL_FEATURE_MASK, "allowed-fused"},
        {37, 4096, GUMBEL_FEATURE_ALLOWED, "allowed-fused"},
        {38, 4096, GUMBEL_FEATURE_ALLOWED, "hopper edit"}, /* 38 * 1024 > V / 4 */
        {1, 4097, GUMBEL_FEATURE_MASK, "naive draw-allowed"},
        {1, 4096, GUMBEL_FEATURE_ALLOWED | GUMBEL_FEATURE_BANNED, "allowed edit"},
        {1, 4096, GUMBEL_FEATURE_ALLOWED | GUMBEL_FEATURE_PENALTIES, "allowed edit"},
        {1, 4096, GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_TOP, "allowed cluster"},
        {1, 4096, GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_GIVEN, "allowed cluster"},
        {1, 4096, GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_RAW, "hopper cluster"},
        {1, 0, GUMBEL_FEATURE_MASK, "draw-allowed"},
        {1, 4096, 0, "hopper"},
    };
    cuda_device hopper = plan_device(1);
    const cuda_device ampere = plan_device(0);
    gumbel_problem p = few_allowed(1, 4096, GUMBEL_FEATURE_MASK);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gumbel_problem q = few_allowed(cases[i].batch, cases[i].hidden_size, cases[i].features);
        assert_string_equal(plan_rungs(&hopper, &q, 0), cases[i].rungs);
    }
    assert_string_equal(plan_rungs(&hopper, &p, GUMBEL_CAPABILITY_SUMMARIES), "allowed-fused");
    plan_force_rungs(&hopper, "-allowed-fused");
    assert_string_equal(plan_rungs(&hopper, &p, 0), "allowed draw-allowed");
    assert_string_equal(plan_rungs(&ampere, &p, 0), "tensor draw-allowed");
    plan_force_rungs(&hopper, "-hopper");
    assert_string_equal(plan_rungs(&hopper, &p, 0), "tensor draw-allowed");
    hopper.rungs = ampere.rungs;
    p.with_mass = 0;
    p.screen = plan_data;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "allowed-fused");
    p.transforms.max_allowed = 0;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "screen");
}

static void purposes_select_rungs(void **state)
{
    const cuda_device hopper = plan_device(1), ampere = plan_device(0);
    gumbel_problem head = plan_problem(8, 4096, 0), logits = plan_problem(8, 0, 0);
    gumbel_problem empty = logits, huge = plan_problem(8, 0, GUMBEL_FEATURE_RANKS);
    gumbel_problem nucleus = plan_problem(32, 0, GUMBEL_FEATURE_TRUNCATION);
    (void)state;
    empty.end_token = 0;
    huge.vocab = huge.end_token = 450000;
    nucleus.truncation.top_p.data = (float *)plan_data;
    assert_string_equal(plan_rungs(&hopper, &nucleus, 0), "pivots");
    nucleus.scale = -2;
    assert_string_equal(plan_rungs(&hopper, &head, GUMBEL_CAPABILITY_SUMMARIES), "hopper");
    assert_string_equal(plan_rungs(&hopper, &head, GUMBEL_CAPABILITY_PRODUCT), "hopper");
    assert_string_equal(plan_rungs(&hopper, &logits, GUMBEL_CAPABILITY_SUMMARIES), "draw");
    assert_string_equal(plan_rungs(&hopper, &logits, GUMBEL_CAPABILITY_ROWS), "cluster");
    assert_string_equal(plan_rungs(&ampere, &logits, GUMBEL_CAPABILITY_ROWS), "grid");
    /* As in verification by rules: rows of a head, edited by lists and paths, and truncated. */
    gumbel_problem verified = plan_problem(32, 4096, GUMBEL_FEATURE_PENALTIES);
    verified.features |= GUMBEL_FEATURE_TRUNCATION;
    verified.with_path = 1;
    assert_string_equal(plan_rungs(&hopper, &verified, GUMBEL_CAPABILITY_ROWS), "hopper cluster");
    assert_string_equal(plan_rungs(&ampere, &verified, GUMBEL_CAPABILITY_ROWS), "tensor grid");
    assert_string_equal(plan_rungs(&hopper, &empty, 0), "nothing");
    assert_string_equal(plan_rungs(&hopper, &huge, 0), "grid");
    assert_string_equal(plan_rungs(&hopper, &nucleus, 0), "cluster");
    assert_string_equal(plan_rungs(&ampere, &nucleus, 0), "grid");
    empty.features = GUMBEL_FEATURE_MASK;
    assert_string_equal(plan_rungs(&hopper, &empty, GUMBEL_CAPABILITY_SUMMARIES), "cluster");
    assert_string_equal(plan_rungs(&ampere, &empty, GUMBEL_CAPABILITY_SUMMARIES), "grid");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_select_rungs),
        cmocka_unit_test(few_allowed_tokens_select_rungs),
        cmocka_unit_test(purposes_select_rungs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
