/* SPDX-License-Identifier: Apache-2.0
 *
 * A seed determines the token. The reference implementation is compared with the oracle; every ISA,
 * thread count and tile size is compared with the reference, bit by bit.
 */
#include "oracle.h"
#include "outcome.h"
#include "problem_plans.h"
#include "test_scale.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const int32_t tiles[] = {64, 128, 192, 1024, 4096};

/* ---------------------------------------------------------------- against the oracle ---- */

typedef struct tally {
    int64_t draws, near_ties;
    double worst_score; /* errors divided by their bounds */
    double worst_lse;
} tally;

/* Compares one draw. If the tokens differ, the oracle's scores of the two must be closer than their
 * error bounds (a near tie). */
static void check_draw(const oracle_logits *logits, oracle_stream stream, int32_t token,
                       float score, const problem_plan *plan, int64_t row, tally *seen)
{
    oracle_draw expected = oracle_pick(logits, stream);
    double bound = expected.score_bound, exact = expected.score;
    seen->draws++;
    if (token != expected.token) {
        int64_t end = plan->vocab_size ? plan->vocab_size : plan->first_token + plan->vocab;
        if (token < plan->first_token || token >= end)
            fail_msg("%s: row %" PRId64 " drew %d, out of range; the oracle drew %d",
                     problem_describe(plan), row, (int)token, (int)expected.token);
        exact = oracle_score(logits, stream, token, &bound);
        double margin = expected.score - exact, allowed = bound + expected.score_bound;
        print_message("near tie: %s: row %" PRId64 ": %d for %d, margin %.3g of %.3g allowed\n",
                      problem_describe(plan), row, (int)token, (int)expected.token, margin,
                      allowed);
        if (margin > allowed)
            fail_msg("not a near tie");
        seen->near_ties++;
    }
    double error = fabs(score - exact) / bound;
    if (!(error <= 1))
        fail_msg("%s: row %" PRId64 " token %d: score %a, the oracle has %a, bound %.3g",
                 problem_describe(plan), row, (int)token, (double)score, exact, bound);
    seen->worst_score = fmax(seen->worst_score, error);
}

static void check_lse(const oracle_logits *logits, float lse, const problem_plan *plan, int64_t row,
                      tally *seen)
{
    double exact = oracle_lse(logits), bound = 2 * 0x1p-23 * fmax(1, fabs(exact)), widest = 0;
    for (int64_t i = 0; i < logits->count; i++)
        widest = fmax(widest, logits->bound[i]);
    double error = fabs(lse - exact) / (bound + widest);
    if (!(error <= 1))
        fail_msg("%s: row %" PRId64 ": lse %a, the oracle has %a", problem_describe(plan), row,
                 (double)lse, exact);
    seen->worst_lse = fmax(seen->worst_lse, error);
}

static void check_problem(const problem *generated, const outcome *drawn, tally *seen)
{
    const problem_plan *plan = &generated->plan;
    oracle_logits logits = {.z = make_zeroed((size_t)plan->vocab, sizeof(double)),
                            .bound = make_zeroed((size_t)plan->vocab, sizeof(double))};
    for (int64_t b = 0; b < plan->batch; b++) {
        float temperature = generated->temperature[b];
        oracle_fused_row(&generated->head, b, temperature, &logits);
        assert_int_equal(drawn->status[b], logits.status);
        for (int32_t s = 0; s < plan->samples; s++) {
            oracle_stream stream = {generated->seed[b], generated->position[b],
                                    generated->first_sample[b] + (uint32_t)s, plan->domain,
                                    temperature == 0};
            int64_t at = b * plan->samples + s;
            check_draw(&logits, stream, drawn->tokens[at], drawn->scores[at], plan, b, seen);
        }
        check_lse(&logits, drawn->lse[b], plan, b, seen);
    }
    free(logits.z);
    free(logits.bound);
}

/* --------------------------------------------------------------- against each other ---- */

static void check_device(const problem *generated, const outcome *expected, gumbel_isa isa,
                         int32_t threads, int32_t tile)
{
    gumbel_device *device = open_device(isa, threads, tile);
    outcome *found = outcome_make(generated->plan.batch, generated->plan.samples);
    char what[420];
    snprintf(what, sizeof what, "%s, %d threads, tile %d: %s", gumbel_isa_name(isa), (int)threads,
             (int)tile, problem_describe(&generated->plan));
    assert_int_equal(draw(device, &generated->head, &generated->sampling, found), GUMBEL_OK);
    if (!outcome_same(expected, 0, found, OUTCOME_ALL, what))
        fail_msg("differs from the reference on one thread");
    outcome_free(found);
    gumbel_close(device);
}

#define DEVICES (TEST_SANITIZED ? 1 : 3)

/* Draws on `devices` devices for each ISA, with different thread counts and tile sizes. */
static void check_plan(problem_plan plan, int devices, uint64_t *random, tally *seen)
{
    problem *generated = problem_make(&plan);
    outcome *expected = outcome_make(generated->plan.batch, generated->plan.samples);
    gumbel_device *reference = open_device(GUMBEL_ISA_REFERENCE, 1, 0);
    assert_int_equal(draw(reference, &generated->head, &generated->sampling, expected), GUMBEL_OK);
    check_problem(generated, expected, seen);
    gumbel_isa isas[4];
    int count = list_isas(isas);
    for (int k = 0; k < count; k++)
        for (int i = 0; i < devices; i++)
            check_device(generated, expected, isas[k], 1 + (int32_t)random_below(random, 4),
                         tiles[random_below(random, 5)]);
    gumbel_close(reference);
    outcome_free(expected);
    problem_free(generated);
}

static void print_tally(const tally *seen)
{
    print_message("%" PRId64 " draws against the oracle: %" PRId64
                  " near ties differ; largest errors: score %.2f, lse %.2f of their bounds\n",
                  seen->draws, seen->near_ties, seen->worst_score, seen->worst_lse);
    /* The bounds assume the worst order and signs of a sum, so that even near ties are rare. */
    assert_true(seen->near_ties <= 1 + seen->draws / 1000);
}

static void every_hidden_size_and_dtype(void **state)
{
    (void)state;
    tally seen = {0};
    uint64_t random = 1;
    for (int i = 0; i < PLANS_BY_SIZE; i++)
        check_plan(plan_by_size(i), DEVICES, &random, &seen);
    print_tally(&seen);
}

static void every_vocabulary_residue(void **state)
{
    (void)state;
    tally seen = {0};
    uint64_t random = 2;
    for (int i = 0; i < PLANS_BY_VOCAB; i++)
        check_plan(plan_by_vocab(i), DEVICES, &random, &seen);
    print_tally(&seen);
}

static void random_plans(void **state)
{
    (void)state;
    tally seen = {0};
    uint64_t random = 3;
    for (int i = 0; i < (is_nightly() ? 5000 : TEST_SANITIZED ? 30 : 200); i++)
        check_plan(plan_at_random(i), DEVICES, &random, &seen);
    print_tally(&seen);
}

/* Negative products that underflow give a logit of -0, or of +0 if zeros pad the last vector. */
static void underflowing_products(void **state)
{
    gumbel_isa isas[4];
    int count = list_isas(isas);
    (void)state;
    for (int64_t size = 1; size <= 70; size++) {
        problem_plan plan = {.batch = 2, .vocab = 5, .hidden_size = size};
        plan.weight_dtype = size % 2 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT32;
        problem *generated = problem_make(&plan);
        outcome *expected = outcome_make(plan.batch, 1), *found = outcome_make(plan.batch, 1);
        for (int64_t i = 0; i < plan.vocab * size; i++)
            dtype_store(generated->weight, plan.weight_dtype, i, -0x1p-100f);
        for (int64_t i = 0; i < plan.batch * size; i++)
            dtype_store(generated->hidden, GUMBEL_FLOAT32, i, 0x1p-60f);
        for (int64_t b = 0; b < plan.batch; b++)
            generated->temperature[b] = 0;
        for (int k = 0; k < count; k++) {
            gumbel_device *device = open_device(isas[k], 1, 0);
            outcome *into = k ? found : expected;
            assert_int_equal(draw(device, &generated->head, &generated->sampling, into), GUMBEL_OK);
            assert_true(outcome_same(expected, 0, into, OUTCOME_ALL, gumbel_isa_name(isas[k])));
            gumbel_close(device);
        }
        assert_int_equal(signbit(expected->scores[0]) != 0, size % 32 == 0);
        outcome_free(expected);
        outcome_free(found);
        problem_free(generated);
    }
}

/* Every thread count with every tile size, on a vocabulary of many tiles. */
static void every_thread_count_and_tile_size(void **state)
{
    (void)state;
    problem_plan plan = {.batch = 5,
                         .vocab = TEST_SANITIZED ? 4500 : 10037,
                         .hidden_size = 40,
                         .samples = 2,
                         .seed = 77};
    problem *generated = problem_make(&plan);
    outcome *expected = outcome_make(5, 2);
    gumbel_device *reference = open_device(GUMBEL_ISA_REFERENCE, 1, 0);
    assert_int_equal(draw(reference, &generated->head, &generated->sampling, expected), GUMBEL_OK);
    gumbel_isa isas[4];
    int count = list_isas(isas);
    for (int k = 0; k < count; k++) {
        for (int32_t threads = 1; threads <= 4; threads++)
            for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++)
                check_device(generated, expected, isas[k], threads, tiles[t]);
        check_device(generated, expected, isas[k], 0, 0);
        check_device(generated, expected, isas[k], 64, 64);
    }
    gumbel_close(reference);
    outcome_free(expected);
    problem_free(generated);
}

static void list_tested_isas(void **state)
{
    (void)state;
    for (gumbel_isa isa = GUMBEL_ISA_REFERENCE; isa <= GUMBEL_ISA_NEON; isa++) {
        gumbel_device_info info = {.struct_size = sizeof info};
        print_message("%s: %s\n", gumbel_isa_name(isa),
                      gumbel_isa_available(isa) ? "tested"
                                                : "skipped: not available on this machine");
        if (!gumbel_isa_available(isa))
            continue;
        gumbel_device *device = open_device(isa, 2, 128);
        assert_int_equal(gumbel_describe(device, &info), GUMBEL_OK);
        assert_int_equal(info.isa, isa);
        assert_int_equal(info.threads, 2);
        assert_int_equal(info.tile, 128);
        assert_string_equal(info.name, "cpu");
        gumbel_close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(list_tested_isas),
        cmocka_unit_test(every_hidden_size_and_dtype),
        cmocka_unit_test(every_vocabulary_residue),
        cmocka_unit_test(random_plans),
        cmocka_unit_test(underflowing_products),
        cmocka_unit_test(every_thread_count_and_tile_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
