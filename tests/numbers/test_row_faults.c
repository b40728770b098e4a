/* SPDX-License-Identifier: Apache-2.0
 *
 * Data faults: NaN, +inf and rows without a drawable token give a row status and token -1, and do
 * not change other rows. Greedy rows, and the smallest and largest temperatures.
 */
#include "oracle.h"
#include "outcome.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

#define B 5
#define V 203

static void fill_normal(float *logits, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++)
        logits[i] = 2 * random_normal(&seed) - 20;
}

static gumbel_logits make_logits(const float *values, int64_t batch, int64_t vocab)
{
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = tensor_of(values, GUMBEL_FLOAT32, batch, vocab, 0)};
}

/* Draws B rows with a fault in row `bad`, and B rows without faults. */
static void check_faulty_row(gumbel_device *device, const float *valid, const float *faulty,
                             int bad, gumbel_row_status expected, const char *what)
{
    gumbel_logits a = make_logits(valid, B, V), b = make_logits(faulty, B, V);
    gumbel_sampling sampling = {.struct_size = sizeof sampling, .num_samples = 3};
    outcome *before = outcome_make(B, 3), *after = outcome_make(B, 3);
    assert_int_equal(draw_logits(device, &a, &sampling, before), GUMBEL_OK);
    assert_int_equal(draw_logits(device, &b, &sampling, after), GUMBEL_OK);
    if (after->status[bad] != (int32_t)expected)
        fail_msg("%s: row status is %d, not %d", what, (int)after->status[bad], (int)expected);
    assert_true(isnan(after->lse[bad]));
    for (int s = 0; s < 3; s++) {
        int at = bad * 3 + s;
        assert_int_equal(after->tokens[at], -1);
        assert_true(isnan(after->scores[at]) && isnan(after->logprobs[at]));
        /* Restores the faulty row; all other results must be unchanged. */
        after->tokens[at] = before->tokens[at];
        after->scores[at] = before->scores[at];
        after->logprobs[at] = before->logprobs[at];
    }
    after->status[bad] = before->status[bad];
    after->lse[bad] = before->lse[bad];
    assert_true(outcome_same(before, 0, after, OUTCOME_ALL, what));
    outcome_free(before);
    outcome_free(after);
}

static void nan_and_infinite_rows_set_the_status(void **state)
{
    static float valid[B * V], faulty[B * V];
    fill_normal(valid, B * V, 31);
    for (int bad = 0; bad < B; bad++)
        for (int at = 0; at < V; at += 1 + at / 4) {
            float *row = faulty + bad * V;
            memcpy(faulty, valid, sizeof valid);
            row[at] = NAN;
            check_faulty_row(*state, valid, faulty, bad, GUMBEL_ROW_NAN, "one NaN");
            row[at] = -NAN;
            check_faulty_row(*state, valid, faulty, bad, GUMBEL_ROW_NAN, "one negative NaN");
            row[at] = INFINITY;
            check_faulty_row(*state, valid, faulty, bad, GUMBEL_ROW_INFINITE, "one +inf");
            row[(at + 70) % V] = NAN;
            check_faulty_row(*state, valid, faulty, bad, GUMBEL_ROW_NAN, "+inf and NaN");
        }
    for (int bad = 0; bad < B; bad++) {
        memcpy(faulty, valid, sizeof valid);
        for (int i = 0; i < V; i++)
            faulty[bad * V + i] = -INFINITY;
        check_faulty_row(*state, valid, faulty, bad, GUMBEL_ROW_EMPTY, "all -inf");
        faulty[bad * V + 100] = NAN;
        check_faulty_row(*state, valid, faulty, bad, GUMBEL_ROW_NAN, "-inf and a NaN");
    }
}

/* A token at -inf is never drawn and is no error; the only other token is always drawn. */
static void single_finite_token_is_drawn(void **state)
{
    static float logits[V];
    for (int at = 0; at < V; at++) {
        for (int i = 0; i < V; i++)
            logits[i] = -INFINITY;
        logits[at] = at % 2 ? -1e30f : 3;
        gumbel_logits input = make_logits(logits, 1, V);
        gumbel_sampling sampling = {.struct_size = sizeof sampling, .num_samples = 50};
        outcome *drawn = outcome_make(1, 50);
        assert_int_equal(draw_logits(*state, &input, &sampling, drawn), GUMBEL_OK);
        assert_int_equal(drawn->status[0], GUMBEL_ROW_OK);
        assert_true(drawn->lse[0] == logits[at]);
        for (int s = 0; s < 50; s++) {
            assert_int_equal(drawn->tokens[s], at);
            assert_true(drawn->logprobs[s] == 0);
        }
        outcome_free(drawn);
    }
}

/* The values of padding rows never count; if all rows are padding, no token can be drawn. */
static void padding_rows_never_count(void **state)
{
    static float padded[V], cut[V];
    const float rubbish[] = {NAN, INFINITY, 1e30f, -INFINITY};
    fill_normal(cut, V, 33);
    for (int64_t vocab = 1; vocab < V; vocab += 1 + vocab / 8)
        for (int r = 0; r < 4; r++) {
            memcpy(padded, cut, sizeof cut);
            for (int64_t i = vocab; i < V; i++)
                padded[i] = rubbish[r];
            gumbel_logits whole = make_logits(padded, 1, V), short_one = make_logits(cut, 1, vocab);
            whole.first_token = short_one.first_token = 5;
            whole.vocab_size = 5 + vocab;
            outcome *a = outcome_make(1, 1), *b = outcome_make(1, 1);
            assert_int_equal(draw_logits(*state, &whole, NULL, a), GUMBEL_OK);
            assert_int_equal(draw_logits(*state, &short_one, NULL, b), GUMBEL_OK);
            assert_true(outcome_same(a, 0, b, OUTCOME_ALL, "padding"));
            outcome_free(a);
            outcome_free(b);
        }
    gumbel_logits beyond = make_logits(cut, 1, V);
    beyond.first_token = 1000;
    beyond.vocab_size = 1000;
    outcome *none = outcome_make(1, 1);
    assert_int_equal(draw_logits(*state, &beyond, NULL, none), GUMBEL_OK);
    assert_int_equal(none->status[0], GUMBEL_ROW_EMPTY);
    assert_int_equal(none->tokens[0], -1);
    outcome_free(none);
}

/* Faults from the product: NaN or inf in a hidden row or in a weight row. */
static void faults_from_hidden_states_and_weights(void **state)
{
    problem_plan plan = {.batch = B,
                         .vocab = V,
                         .hidden_size = 33,
                         .seed = 34,
                         .samples = 2,
                         .weight_dtype = GUMBEL_FLOAT32};
    problem *generated = problem_make(&plan);
    outcome *before = outcome_make(B, 2), *after = outcome_make(B, 2), *one = outcome_make(1, 2);
    gumbel_head head;
    gumbel_sampling sampling;
    assert_int_equal(draw(*state, &generated->head, &generated->sampling, before), GUMBEL_OK);
    float *hidden = generated->hidden, *weight = generated->weight;
    const float spoil[] = {NAN, INFINITY};
    for (int k = 0; k < 2; k++) {
        float kept = hidden[2 * 33 + 32];
        hidden[2 * 33 + 32] = spoil[k];
        assert_int_equal(draw(*state, &generated->head, &generated->sampling, after), GUMBEL_OK);
        assert_int_equal(after->status[2], k ? GUMBEL_ROW_INFINITE : GUMBEL_ROW_NAN);
        assert_int_equal(after->tokens[4], -1);
        for (int64_t b = 0; b < B; b++) {
            problem_rows(generated, b, 1, &head, &sampling);
            assert_int_equal(draw(*state, &head, &sampling, one), GUMBEL_OK);
            assert_true(outcome_same(after, b, one, OUTCOME_ALL, "a row beside a faulty one"));
            assert_true(b == 2 || outcome_same(before, b, one, OUTCOME_ALL, "a row as it was"));
        }
        hidden[2 * 33 + 32] = kept;
    }
    weight[100 * 33 + 5] = NAN;
    assert_int_equal(draw(*state, &generated->head, &generated->sampling, after), GUMBEL_OK);
    for (int64_t b = 0; b < B; b++)
        assert_int_equal(after->status[b], GUMBEL_ROW_NAN);
    /* ... but not in a padding row. */
    generated->head.vocab_size = 100;
    assert_int_equal(draw(*state, &generated->head, &generated->sampling, after), GUMBEL_OK);
    for (int64_t b = 0; b < B; b++)
        assert_int_equal(after->status[b], GUMBEL_ROW_OK);
    outcome_free(before);
    outcome_free(after);
    outcome_free(one);
    problem_free(generated);
}

static void greedy_ties_take_the_lowest_id(void **state)
{
    static float logits[V];
    const float zero = 0;
    gumbel_sampling sampling = {
        .struct_size = sizeof sampling, .temperature = {&zero, GUMBEL_SAME}, .num_samples = 2};
    outcome *drawn = outcome_make(1, 2);
    for (int first = 0; first < V; first += 3)
        for (int second = first; second < V; second += 7) {
            for (int i = 0; i < V; i++)
                logits[i] = -7;
            logits[first] = logits[second] = -5;
            gumbel_logits input = make_logits(logits, 1, V);
            input.first_token = 1000001;
            assert_int_equal(draw_logits(*state, &input, &sampling, drawn), GUMBEL_OK);
            for (int s = 0; s < 2; s++) {
                assert_int_equal(drawn->tokens[s], 1000001 + first);
                assert_true(drawn->scores[s] == -5);
            }
        }
    /* Minus zero and zero tie. */
    for (int i = 0; i < V; i++)
        logits[i] = i % 2 ? 0.0f : -0.0f;
    gumbel_logits zeros = make_logits(logits, 1, V);
    assert_int_equal(draw_logits(*state, &zeros, &sampling, drawn), GUMBEL_OK);
    assert_int_equal(drawn->tokens[0], 0);
    assert_true(signbit(drawn->scores[0]) != 0); /* the token's own z */
    outcome_free(drawn);
}

/* A tiny T draws the argmax, a huge one nearly uniformly; no T is an error or draws a token outside
 * the row. */
static void extreme_temperatures_draw_valid_tokens(void **state)
{
    static float logits[V];
    fill_normal(logits, V, 35);
    int best = 0;
    for (int i = 0; i < V; i++)
        best = logits[i] > logits[best] ? i : best;
    gumbel_logits input = make_logits(logits, 1, V);
    const float cold[] = {1e-6f, 1e-20f, 1e-30f, FLT_MIN, 1e-42f, 1e-45f},
                hot[] = {1e6f, 1e30f, FLT_MAX};
    gumbel_sampling sampling = {.struct_size = sizeof sampling, .num_samples = 200};
    outcome *drawn = outcome_make(1, 200);
    for (int k = 0; k < 6; k++) {
        sampling.temperature = (gumbel_row_f32){&cold[k], GUMBEL_SAME};
        assert_int_equal(draw_logits(*state, &input, &sampling, drawn), GUMBEL_OK);
        assert_int_equal(drawn->status[0], GUMBEL_ROW_OK);
        for (int s = 0; s < 200; s++) {
            assert_int_equal(drawn->tokens[s], best);
            assert_true(isfinite(drawn->scores[s]) && drawn->logprobs[s] == 0);
        }
    }
    for (int k = 0; k < 3; k++) {
        int distinct = 0;
        char drawn_once[V] = {0};
        sampling.temperature = (gumbel_row_f32){&hot[k], GUMBEL_SAME};
        assert_int_equal(draw_logits(*state, &input, &sampling, drawn), GUMBEL_OK);
        assert_float_equal(drawn->lse[0], logf(V), 1e-4);
        for (int s = 0; s < 200; s++)
            distinct += !drawn_once[drawn->tokens[s]]++;
        assert_true(distinct > 100); /* 127 of 203 on average */
    }
    outcome_free(drawn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_and_infinite_rows_set_the_status),
        cmocka_unit_test(single_finite_token_is_drawn),
        cmocka_unit_test(padding_rows_never_count),
        cmocka_unit_test(faults_from_hidden_states_and_weights),
        cmocka_unit_test(greedy_ties_take_the_lowest_id),
        cmocka_unit_test(extreme_temperatures_draw_valid_tokens),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
