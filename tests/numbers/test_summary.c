/* SPDX-License-Identifier: Apache-2.0
 *
 * Summaries: merging is associative and commutative bit for bit, has a neutral element, breaks ties
 * by the lower id and keeps flags. The log-normaliser is exact to about an ulp.
 */
#include "oracle.h"
#include "outcome.h"
#include "problem_plans.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

/* -------------------------------------------------------------------------------- merging ---- */

#define PIECES 12

/* Summaries of PIECES random shards of random rows, with logits of very different sizes so that the
 * fixed-point number of the mass has to shift. */
static void make_pieces(gumbel_device *device, uint64_t *random, gumbel_summary pieces[PIECES])
{
    static const float sizes[] = {0, 1, 5, 80, 300, 1e4f, 1e8f, 1e9f};
    float logits[150];
    int64_t at = 0;
    for (int p = 0; p < PIECES; p++) {
        int64_t count = 1 + random_below(random, 150);
        float size = sizes[random_below(random, 8)], middle = sizes[random_below(random, 8)];
        for (int64_t i = 0; i < count; i++)
            logits[i] = size * random_normal(random) - middle;
        if (random_below(random, 12) == 0)
            logits[0] = random_below(random, 2) ? NAN : INFINITY;
        if (random_below(random, 12) == 0)
            for (int64_t i = 0; i < count; i++)
                logits[i] = -INFINITY;
        gumbel_logits input = {.struct_size = sizeof input,
                               .logits = tensor_of(logits, GUMBEL_FLOAT32, 1, count, 0),
                               .first_token = at};
        gumbel_summary *generated = summarise(device, NULL, &input, NULL);
        pieces[p] = *generated;
        free(generated);
        at += count;
    }
}

static gumbel_summary merge_pair(gumbel_summary a, gumbel_summary b)
{
    assert_int_equal(gumbel_merge(NULL, NULL, &a, &b, 1, NULL), GUMBEL_OK);
    return a;
}

static void print_summary(const char *name, const gumbel_summary *s)
{
    print_message("%s: best %a z %a id %" PRId32 " max %a mass %" PRIx64 " %" PRIx64 " %" PRIx64
                  " at %" PRId32 " flags %" PRIu32 "\n",
                  name, (double)s->best_score, (double)s->best_z, s->best_id, (double)s->max_z,
                  s->mass[0], s->mass[1], s->mass[2], s->mass_exponent, s->flags);
}

static void assert_same_summary(gumbel_summary a, gumbel_summary b)
{
    if (memcmp(&a, &b, sizeof a) != 0) {
        print_summary("one  ", &a);
        print_summary("other", &b);
        fail_msg("summaries differ");
    }
}

static void merging_is_associative_and_commutative(void **state)
{
    uint64_t random = 21;
    for (int round = 0; round < 2000; round++) {
        gumbel_summary pieces[PIECES], order[PIECES], straight;
        make_pieces(*state, &random, pieces);
        assert_same_summary(merge_pair(pieces[0], pieces[1]), merge_pair(pieces[1], pieces[0]));
        assert_same_summary(merge_pair(merge_pair(pieces[0], pieces[1]), pieces[2]),
                            merge_pair(pieces[0], merge_pair(pieces[1], pieces[2])));
        gumbel_summary_clear(&straight, 1);
        for (int p = 0; p < PIECES; p++)
            straight = merge_pair(straight, pieces[p]);
        /* A random tree in a random order. */
        memcpy(order, pieces, sizeof order);
        for (int left = PIECES; left > 1; left--) {
            uint32_t a = random_below(&random, (uint32_t)left);
            gumbel_summary taken = order[a];
            order[a] = order[left - 1];
            uint32_t b = random_below(&random, (uint32_t)left - 1);
            order[b] = merge_pair(order[b], taken);
        }
        assert_same_summary(straight, order[0]);
    }
}

static void empty_summary_is_neutral(void **state)
{
    uint64_t random = 22;
    gumbel_summary empty[2], pieces[PIECES];
    memset(empty, 0xA7, sizeof empty);
    gumbel_summary_clear(empty, 2);
    assert_same_summary(empty[0], empty[1]);
    assert_true(empty[0].best_score == -INFINITY && empty[0].max_z == -INFINITY);
    assert_int_equal(empty[0].best_id, -1);
    assert_int_equal(empty[0].mass_exponent, INT32_MIN);
    assert_int_equal(empty[0].flags, 0);
    assert_same_summary(merge_pair(empty[0], empty[1]), empty[0]);
    for (int round = 0; round < 200; round++) {
        make_pieces(*state, &random, pieces);
        for (int p = 0; p < PIECES; p++) {
            assert_same_summary(merge_pair(pieces[p], empty[0]), pieces[p]);
            assert_same_summary(merge_pair(empty[0], pieces[p]), pieces[p]);
        }
    }
    /* A row without tokens is a row status, not an error. */
    outcome *drawn = outcome_make(1, 1);
    assert_int_equal(gumbel_finish(NULL, NULL, empty, 1, 1, 1, &drawn->output, NULL), GUMBEL_OK);
    assert_int_equal(drawn->tokens[0], -1);
    assert_int_equal(drawn->status[0], GUMBEL_ROW_EMPTY);
    assert_true(isnan(drawn->lse[0]) && isnan(drawn->scores[0]) && isnan(drawn->logprobs[0]));
    outcome_free(drawn);
}

static void ties_take_the_lower_id_and_flags_are_kept(void **state)
{
    (void)state;
    gumbel_summary low, high;
    gumbel_summary_clear(&low, 1);
    gumbel_summary_clear(&high, 1);
    low.best_score = high.best_score = 2.5f;
    low.best_id = 7;
    high.best_id = 8;
    low.best_z = 1;
    high.best_z = 2;
    low.flags = 1;
    high.flags = 2;
    assert_int_equal(merge_pair(low, high).best_id, 7);
    assert_int_equal(merge_pair(high, low).best_id, 7);
    assert_true(merge_pair(high, low).best_z == 1);
    assert_int_equal(merge_pair(low, high).flags, 3);
    outcome *drawn = outcome_make(1, 1);
    const uint32_t flags[] = {0, 1, 2, 3};
    const int32_t statuses[] = {GUMBEL_ROW_OK, GUMBEL_ROW_NAN, GUMBEL_ROW_INFINITE, GUMBEL_ROW_NAN};
    for (int i = 0; i < 4; i++) {
        low.flags = flags[i];
        assert_int_equal(gumbel_finish(NULL, NULL, &low, 1, 1, 1, &drawn->output, NULL), GUMBEL_OK);
        assert_int_equal(drawn->status[0], statuses[i]);
        assert_int_equal(drawn->tokens[0], i ? -1 : 7);
    }
    outcome_free(drawn);
}

/* Only requested outputs are written; tokens alone suffice. */
static void outputs_may_be_null(void **state)
{
    uint64_t random = 23;
    gumbel_summary pieces[PIECES];
    make_pieces(*state, &random, pieces);
    outcome *all = outcome_make(PIECES, 1), *some = outcome_make(PIECES, 1);
    assert_int_equal(gumbel_finish(NULL, NULL, pieces, 1, PIECES, 1, &all->output, NULL),
                     GUMBEL_OK);
    for (int req = 0; req < 16; req++) {
        outcome_poison(some);
        gumbel_output output = {.struct_size = sizeof output, .tokens = some->tokens};
        output.logprobs = req & 1 ? some->logprobs : NULL;
        output.scores = req & 2 ? some->scores : NULL;
        output.lse = req & 4 ? some->lse : NULL;
        output.status = req & 8 ? some->status : NULL;
        assert_int_equal(gumbel_finish(NULL, NULL, pieces, 1, PIECES, 1, &output, NULL), GUMBEL_OK);
        assert_memory_equal(some->tokens, all->tokens, PIECES * sizeof(int32_t));
        for (int p = 0; p < PIECES; p++) {
            int32_t poison = (int32_t)0xA7A7A7A7;
            assert_true((memcmp(&some->logprobs[p], &poison, 4) != 0) == !!(req & 1));
            assert_true((memcmp(&some->scores[p], &poison, 4) != 0) == !!(req & 2));
            assert_true((memcmp(&some->lse[p], &poison, 4) != 0) == !!(req & 4));
            assert_int_equal(some->status[p], req & 8 ? all->status[p] : poison);
        }
    }
    outcome_free(all);
    outcome_free(some);
}

/* ------------------------------------------------------------------- the log-normaliser ---- */

static double float_ulp(double x)
{
    int exponent;
    frexp(fmax(1, fabs(x)), &exponent);
    return ldexp(1, exponent - 24);
}

/* |lse - exact| in ulp of max(1, |lse|). */
static double lse_error(gumbel_device *device, const float *values, int64_t count)
{
    gumbel_logits input = {.struct_size = sizeof input,
                           .logits = tensor_of(values, GUMBEL_FLOAT32, 1, count, 0)};
    oracle_logits exact = {.z = make_zeroed((size_t)count, sizeof(double)),
                           .bound = make_zeroed((size_t)count, sizeof(double))};
    outcome *drawn = outcome_make(1, 1);
    oracle_logits_row(&input, 0, 1, &exact);
    assert_int_equal(draw_logits(device, &input, NULL, drawn), GUMBEL_OK);
    double expected = oracle_lse(&exact);
    double error = fabs(drawn->lse[0] - expected) / float_ulp(expected);
    assert_int_equal(drawn->status[0], GUMBEL_ROW_OK);
    float logprob = (float)exact.z[drawn->tokens[0]] - drawn->lse[0];
    assert_true(drawn->logprobs[0] == fminf(logprob, 0));
    if (!(error <= 1))
        print_message("lse of %" PRId64 " logits is %a, exactly %a\n", count, (double)drawn->lse[0],
                      expected);
    outcome_free(drawn);
    free(exact.z);
    free(exact.bound);
    return error;
}

static void log_normaliser_is_accurate(void **state)
{
    static const float spreads[] = {0, 1e-6f, 0.1f, 1, 4, 40, 80, 1000, 1e4f};
    static const float middles[] = {0, 1, -8, 20, -80, 88, -104, 1e4f, -1e4f, 1e6f, -1e8f};
    static const int64_t counts[] = {1, 2, 3, 63, 64, 65, 129, 1000, 20000};
    static float values[20000];
    uint64_t random = 24;
    double worst = 0;
    for (size_t s = 0; s < sizeof spreads / sizeof *spreads; s++)
        for (size_t m = 0; m < sizeof middles / sizeof *middles; m++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                for (int64_t i = 0; i < counts[c]; i++)
                    values[i] = middles[m] + spreads[s] * random_normal(&random);
                worst = fmax(worst, lse_error(*state, values, counts[c]));
                assert_true(worst <= 1);
            }
    print_message("largest error of the log-normaliser: %.3f ulp of max(1, |lse|)\n", worst);
}

/* Near 0 the lse is a difference of numbers near 1, and has their absolute error. */
static void log_normaliser_near_zero(void **state)
{
    enum { COUNT = 199 };
    static float values[COUNT];
    uint64_t random = 25;
    double worst = 0;
    for (int round = 0; round < 3000; round++) {
        int64_t count = 2 + random_below(&random, COUNT - 1);
        float spread = 0.01f * (float)random_below(&random, 400);
        double mass = 0;
        for (int64_t i = 0; i < count; i++) {
            values[i] = spread * random_normal(&random);
            mass += exp((double)values[i]);
        }
        for (int64_t i = 0; i < count; i++)
            values[i] -= (float)log(mass);
        worst = fmax(worst, lse_error(*state, values, count) * 0x1p-23);
    }
    print_message("largest error of the log-normaliser near 0: %.2g\n", worst);
    assert_true(worst < 0x1p-20);
}

/* Values at the limits of the fixed-point format and of the exponential. */
static void log_normaliser_of_extreme_logits(void **state)
{
    const float all[] = {FLT_MAX,        -FLT_MAX, 0x1p31f, -0x1p31f,
                         0x1.fffffep30f, 3e9f,     FLT_MIN, 1e-45f};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        float one[2] = {all[i], -INFINITY}, two[2] = {all[i], all[i]};
        assert_true(lse_error(*state, one, 1) <= 1);
        assert_true(lse_error(*state, one, 2) <= 1);
        assert_true(lse_error(*state, two, 2) <= 1);
    }
    /* A very large and a very small logit, in either order. */
    const float mixed[][3] = {{1e4f, -1e4f, 0},
                              {-1e4f, 0, 1e4f},
                              {80, -80, -80},
                              {0, -87.5f, -88},
                              {FLT_MAX, -FLT_MAX, 0}};
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++)
        assert_true(lse_error(*state, mixed[i], 3) <= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_is_associative_and_commutative),
        cmocka_unit_test(empty_summary_is_neutral),
        cmocka_unit_test(ties_take_the_lower_id_and_flags_are_kept),
        cmocka_unit_test(outputs_may_be_null),
        cmocka_unit_test(log_normaliser_is_accurate),
        cmocka_unit_test(log_normaliser_near_zero),
        cmocka_unit_test(log_normaliser_of_extreme_logits),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
