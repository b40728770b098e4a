/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncation at its exact boundaries. The masses of the rows are exact by construction, so the
 * number of kept tokens is known without a tolerance, also for top_p one float below and above a
 * boundary. Further tests have ties at the cutoff, in one block or many, and rows for which the
 * fast paths of truncation fail.
 */
#include "requests.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

#define V_MAX 40000

/* One row and its rules; 0 in a field is the default. */
typedef struct truncation_case {
    const char *name;
    const float *logits;
    int64_t vocab, first_token;
    float temperature, min_p, top_p;
    int32_t top_k;
    gumbel_order order;
    gumbel_ties ties;
} truncation_case;

static gumbel_logits make_row_logits(const truncation_case *a)
{
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = tensor_of(a->logits, GUMBEL_FLOAT32, 1, a->vocab, 0),
                           .first_token = a->first_token};
}

/* Draws 3 tokens of the row; fills in `sampling` and `truncation`. */
static outcome *draw_row(gumbel_device *device, const truncation_case *a, gumbel_sampling *sampling,
                         gumbel_truncation *truncation)
{
    gumbel_logits logits = make_row_logits(a);
    *truncation = (gumbel_truncation){.struct_size = sizeof *truncation,
                                      .min_p = {&a->min_p, GUMBEL_SAME},
                                      .top_k = {&a->top_k, GUMBEL_SAME},
                                      .top_p = {a->top_p > 0 ? &a->top_p : NULL, 0},
                                      .order = a->order,
                                      .ties = a->ties};
    *sampling = (gumbel_sampling){.struct_size = sizeof *sampling,
                                  .temperature = {a->temperature > 0 ? &a->temperature : NULL, 0},
                                  .num_samples = 3,
                                  .truncation = truncation};
    outcome *drawn = outcome_make(1, 3);
    outcome_widen(drawn, 2, GUMBEL_PROCESSED);
    size_t bytes;
    void *workspace = call_workspace(device, NULL, &logits, sampling, &drawn->output, &bytes);
    gumbel_status status = gumbel_sample_logits(device, NULL, &logits, sampling, &drawn->output,
                                                workspace, bytes, &drawn->error);
    free(workspace);
    if (status != GUMBEL_OK)
        fail_msg("%s: %s", a->name, drawn->error.message);
    return drawn;
}

/* Asserts that the draw's kept count and the processed logits both keep `expected` tokens, and that
 * no removed token has a larger logit than a kept one, or an equal logit and a lower id. */
static void assert_kept_count(gumbel_device *device, const truncation_case *a, int64_t expected)
{
    static float processed[V_MAX];
    gumbel_sampling sampling;
    gumbel_truncation truncation;
    outcome *drawn = draw_row(device, a, &sampling, &truncation);
    gumbel_logits logits = make_row_logits(a);
    float lowest_kept = INFINITY, highest_removed = -INFINITY;
    int64_t kept = 0, lowest_kept_token = -1, highest_removed_token = -1;
    assert_int_equal(request_process(device, &logits, &sampling, processed), GUMBEL_OK);
    for (int64_t i = 0; i < a->vocab; i++)
        if (processed[i] > -INFINITY) {
            kept++;
            lowest_kept_token = a->logits[i] <= lowest_kept ? i : lowest_kept_token;
            lowest_kept = fminf(lowest_kept, a->logits[i]);
        } else if (a->logits[i] > highest_removed) {
            highest_removed = a->logits[i];
            highest_removed_token = i;
        }
    if (drawn->kept[0] != expected || kept != expected)
        fail_msg("%s (min_p %a top_k %d top_p %a): %d and %lld are kept, not %lld", a->name,
                 (double)a->min_p, (int)a->top_k, (double)a->top_p, (int)drawn->kept[0],
                 (long long)kept, (long long)expected);
    if (highest_removed > lowest_kept ||
        (highest_removed == lowest_kept && highest_removed_token < lowest_kept_token))
        fail_msg("%s: token %lld is kept and %lld is removed", a->name,
                 (long long)lowest_kept_token, (long long)highest_removed_token);
    for (int s = 0; s < 3; s++)
        assert_true(processed[drawn->tokens[s] - a->first_token] > -INFINITY);
    outcome_free(drawn);
}

/* Computes the probabilities [V] of the kept set. */
static void compute_probabilities(gumbel_device *device, const truncation_case *a,
                                  float *probabilities)
{
    gumbel_sampling sampling;
    gumbel_truncation truncation;
    gumbel_logits logits = make_row_logits(a);
    size_t bytes;
    outcome_free(draw_row(device, a, &sampling, &truncation));
    void *workspace = call_workspace(device, NULL, &logits, &sampling, NULL, &bytes);
    assert_int_equal(
        gumbel_softmax(device, NULL, &logits, &sampling, probabilities, 0, workspace, bytes, NULL),
        GUMBEL_OK);
    free(workspace);
}

static void fill_row(float *row, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++)
        row[i] = value;
}

/* ------------------------------------------------------------------------------- top_p ---- */

/* Every token has mass 1, so the smallest nucleus of top_p = j / V has exactly j tokens. All V
 * tokens tie, so that GUMBEL_TIES_ALL keeps all of them. */
static void top_p_of_equal_tokens(void **state)
{
    static float row[4096];
    static const int64_t counts[] = {1, 2, 8, 64, 256, 4096};
    for (int c = 0; c < 6; c++) {
        int64_t vocab = counts[c];
        fill_row(row, vocab, -3.25f);
        for (int64_t j = 1; j < vocab; j += 1 + vocab / 7) {
            truncation_case a = {.name = "equal tokens", .logits = row, .vocab = vocab};
            a.top_p = (float)j / (float)vocab;
            assert_kept_count(*state, &a, vocab);
            a.ties = GUMBEL_TIES_EXACT;
            assert_kept_count(*state, &a, j);
            a.top_p = nextafterf(a.top_p, 1);
            assert_kept_count(*state, &a, j + 1);
            a.top_p = nextafterf(nextafterf(a.top_p, 0), 0);
            assert_kept_count(*state, &a, j);
        }
        truncation_case a = {.name = "1 - 2^-24", .logits = row, .vocab = vocab};
        a.ties = GUMBEL_TIES_EXACT;
        a.top_p = 1 - 0x1p-24f;
        assert_kept_count(*state, &a, vocab);
        a.top_p = FLT_TRUE_MIN;
        assert_kept_count(*state, &a, 1);
    }
}

/* Other libraries mask tokens with -FLT_MAX. If the cutoff has this value, all ties are kept, and
 * with GUMBEL_TIES_EXACT the lower ids. */
static void ties_at_the_lowest_float(void **state)
{
    static float row[300], probabilities[300];
    for (int with_larger = 0; with_larger < 2; with_larger++)
        for (int64_t vocab = 8; vocab <= 300; vocab += 73) {
            fill_row(row, vocab, -FLT_MAX);
            row[vocab / 2] = with_larger ? 1.5f : -FLT_MAX;
            truncation_case a = {
                .name = "the lowest float", .logits = row, .vocab = vocab, .top_k = 3};
            assert_kept_count(*state, &a, vocab);
            a.ties = GUMBEL_TIES_EXACT;
            for (int order = 0; order < REQUEST_ORDERS; order++) {
                a.order = (gumbel_order)order;
                assert_kept_count(*state, &a, 3);
                compute_probabilities(*state, &a, probabilities);
                for (int64_t i = 0; i < vocab && !with_larger; i++)
                    assert_true(probabilities[i] == (i < 3 ? 1.0f / 3 : 0));
            }
            a.top_k = 0;
            a.top_p = 0.5f;
            assert_kept_count(*state, &a, with_larger ? 1 : (vocab + 1) / 2);
        }
}

/* Seven tokens of mass 1; the mass of all others rounds to 0. */
static void top_p_with_a_massless_tail(void **state)
{
    static float row[5000];
    fill_row(row, 5000, -60);
    for (int i = 0; i < 7; i++)
        row[i * 613 + 5] = 0;
    truncation_case a = {
        .name = "a tail without mass", .logits = row, .vocab = 5000, .first_token = 37};
    a.top_p = 1 - 0x1p-24f;
    assert_kept_count(*state, &a, 7);
    a.ties = GUMBEL_TIES_EXACT;
    assert_kept_count(*state, &a, 7);
    a.top_p = 6.0f / 7;
    assert_kept_count(*state, &a, (double)a.top_p * 7 > 6 ? 7 : 6);
    a.top_p = 0.5f;
    assert_kept_count(*state, &a, 4);
    a.top_p = 1;
    assert_kept_count(*state, &a, 5000);
}

/* The largest top_p below 1 removes at most 2^-24 of the mass; one tail has slightly less, one
 * more. */
static void top_p_with_a_light_tail(void **state)
{
    static float row[30001];
    truncation_case a = {.name = "a light tail", .logits = row, .vocab = 30001};
    a.top_p = 1 - 0x1p-24f;
    fill_row(row, 30001, -27); /* 30000 e^-27 = 2^-24.08: the whole tail is removed */
    row[20000] = 0;
    assert_kept_count(*state, &a, 1);
    a.ties = GUMBEL_TIES_EXACT;
    assert_kept_count(*state, &a, 1);
    fill_row(row, 30001, -26.5f); /* 2^-23.36: part of the tail is kept */
    row[20000] = 0;
    double token_mass = exp(-26.5), removed_mass = 0x1p-24 * (1 + 30000 * token_mass);
    assert_kept_count(*state, &a, 1 + (int64_t)ceil(30000 - removed_mass / token_mass));
    a.ties = GUMBEL_TIES_ALL;
    assert_kept_count(*state, &a, 30001);
}

/* A bound may be estimated from every 16th block alone. First these blocks have the larger logits,
 * so that the estimate is too high, then the smaller ones. */
static void top_p_with_a_misleading_sample(void **state)
{
    static float row[V_MAX];
    for (int64_t i = 0; i < V_MAX; i++)
        row[i] = i / 64 % 16 == 0 ? 0 : -1;
    truncation_case a = {
        .name = "a misleading sample", .logits = row, .vocab = V_MAX, .top_p = 0.5f};
    assert_kept_count(*state, &a, V_MAX);
    for (int64_t i = 0; i < V_MAX; i++)
        row[i] = i / 64 % 16 == 0 ? -1 : 0;
    assert_kept_count(*state, &a, V_MAX - V_MAX / 64 / 16 * 64 - 64);
}

/* ------------------------------------------------------------------------ top_k, min_p ---- */

/* Every k, in a row without ties; the k-th largest token can be in any block. */
static void top_k_of_distinct_tokens(void **state)
{
    static float row[1000];
    for (int i = 0; i < 1000; i++)
        row[i * 617 % 1000] = (float)(500 - i) * 0.37f;
    for (int32_t k = 1; k < 1000; k += 1 + k / 5) {
        truncation_case a = {
            .name = "distinct", .logits = row, .vocab = 1000, .top_k = k, .first_token = 61};
        assert_kept_count(*state, &a, k);
        a.ties = GUMBEL_TIES_EXACT;
        assert_kept_count(*state, &a, k);
        a.temperature = 0.5f;
        a.order = GUMBEL_ORDER_BEFORE_TEMPERATURE;
        assert_kept_count(*state, &a, k);
    }
    static const int32_t large_ks[] = {999, 1000, 1001, INT32_MAX};
    for (int i = 0; i < 4; i++) {
        truncation_case a = {
            .name = "k as large as V", .logits = row, .vocab = 1000, .top_k = large_ks[i]};
        assert_kept_count(*state, &a, large_ks[i] < 1000 ? large_ks[i] : 1000);
    }
}

/* In each block one token is above all others, which are equal. With k above the number of blocks,
 * the smallest block maximum is not a lower bound on the k-th largest logit. */
static void top_k_among_equal_logits(void **state)
{
    static float row[640];
    fill_row(row, 640, -2);
    for (int i = 0; i < 10; i++)
        row[i * 64 + i] = (float)i;
    truncation_case a = {
        .name = "few large above equal logits", .logits = row, .vocab = 640, .top_k = 11};
    assert_kept_count(*state, &a, 640);
    a.ties = GUMBEL_TIES_EXACT;
    for (a.top_k = 1; a.top_k < 640; a.top_k += 9)
        assert_kept_count(*state, &a, a.top_k);
    /* Eleven tokens remain: the ten large ones, and the first of the equal ones. */
    a.top_k = 11;
    a.top_p = 1 - 0x1p-24f;
    assert_kept_count(*state, &a, 11);
}

static void zeros_of_both_signs_tie(void **state)
{
    float row[70];
    for (int i = 0; i < 70; i++)
        row[i] = i % 3 == 0 ? -0.0f : 0.0f;
    truncation_case a = {.name = "zeros of both signs", .logits = row, .vocab = 70, .top_k = 1};
    assert_kept_count(*state, &a, 70);
    a.ties = GUMBEL_TIES_EXACT;
    assert_kept_count(*state, &a, 1);
    a.top_k = 68;
    assert_kept_count(*state, &a, 68);
}

static void boundaries_of_min_p(void **state)
{
    float row[5] = {0, -0x1.62e43p-1f, -0x1.62e432p-1f, -87, -104};
    truncation_case a = {.name = "boundaries of min_p", .logits = row, .vocab = 5};
    a.min_p = 0.5f; /* its logarithm is row[1] */
    assert_kept_count(*state, &a, 2);
    a.min_p = nextafterf(0.5f, 1);
    assert_kept_count(*state, &a, 1);
    a.min_p = nextafterf(0.5f, 0);
    assert_kept_count(*state, &a, 3);
    a.min_p = 1;
    assert_kept_count(*state, &a, 1);
    a.min_p = FLT_MIN; /* exp(-87.3) */
    assert_kept_count(*state, &a, 4);
    a.min_p = FLT_TRUE_MIN; /* exp(-103.3) */
    assert_kept_count(*state, &a, 4);
    a.min_p = 0;
    assert_kept_count(*state, &a, 5);
}

/* ------------------------------------------------------------------------------ orders ---- */

/* The probabilities are 0.4, 0.3, 0.2 and 0.1. top_p keeps a token if the mass of larger ones is
 * less than top_p; min_p, if its ratio to the largest probability is at least min_p. */
static void orders_of_rules_by_hand(void **state)
{
    float row[4];
    for (int i = 0; i < 4; i++)
        row[i] = logf((float)(4 - i));
    truncation_case a = {.name = "orders", .logits = row, .vocab = 4, .top_k = 2, .top_p = 0.5f};
    assert_kept_count(*state, &a, 1); /* top_k leaves 7 tenths: 4/7 >= 0.5 */
    a.order = GUMBEL_ORDER_JOINT;
    assert_kept_count(*state, &a, 2); /* top_p sees all: 4/10 < 0.5 */
    a.top_p = 0.3f;
    assert_kept_count(*state, &a, 1);
    a = (truncation_case){
        .name = "min_p last", .logits = row, .vocab = 4, .top_k = 3, .min_p = 0.7f};
    a.top_p = 0.45f;
    assert_kept_count(*state, &a, 1); /* min_p keeps 7 tenths: 4/7 >= 0.45 */
    a.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P;
    assert_kept_count(*state, &a, 2); /* top_k keeps 9 tenths: 4/9 < 0.45 */
    a.top_p = 0.44f;
    assert_kept_count(*state, &a, 1);
    a.order = GUMBEL_ORDER_JOINT;
    assert_kept_count(*state, &a, 2); /* 4/10 < 0.44 */
    a.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P;
    a.top_p = 0.9f;
    assert_kept_count(*state, &a, 2); /* top_p keeps three: 7/9 < 0.9; min_p two: 2/4 < 0.7 */
    a.temperature = 2;
    assert_kept_count(*state, &a, 3); /* sqrt(2/4) >= 0.7 */
    a.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE;
    assert_kept_count(*state, &a, 2);
    a.top_p = 0.44f;
    assert_kept_count(*state, &a, 1);
    a.order = GUMBEL_ORDER_JOINT_TEMPERATURE;
    assert_kept_count(*state, &a, 2);
    a = (truncation_case){
        .name = "temperature", .logits = row, .vocab = 4, .min_p = 0.4f, .temperature = 2};
    assert_kept_count(*state, &a, 4); /* sqrt(1/4) >= 0.4 */
    a.order = GUMBEL_ORDER_BEFORE_TEMPERATURE;
    assert_kept_count(*state, &a, 3); /* 1/4 < 0.4 */
}

/* A single kept token is drawn with any noise; the second of the two top tokens is empty. */
static void single_survivor_is_drawn(void **state)
{
    static float row[777];
    static const float temperatures[] = {1, 1e-3f, 1e6f};
    fill_row(row, 777, -1e-5f);
    row[700] = 0;
    for (int t = 0; t < 3; t++) {
        gumbel_sampling sampling;
        gumbel_truncation truncation;
        truncation_case a = {.name = "a single survivor", .logits = row, .vocab = 777, .top_k = 1};
        a.temperature = temperatures[t];
        outcome *drawn = draw_row(*state, &a, &sampling, &truncation);
        for (int s = 0; s < 3; s++) {
            assert_int_equal(drawn->tokens[s], 700);
            assert_int_equal(drawn->ranks[s], 1);
            assert_true(drawn->logprobs[s] == 0);
        }
        assert_true(drawn->lse[0] == 0 && drawn->kept[0] == 1);
        assert_true(drawn->top_ids[0] == 700 && drawn->top_logprobs[0] == 0);
        assert_true(drawn->top_ids[1] == 0 && drawn->top_logprobs[1] == -INFINITY);
        outcome_free(drawn);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(top_p_of_equal_tokens),
        cmocka_unit_test(ties_at_the_lowest_float),
        cmocka_unit_test(top_p_with_a_massless_tail),
        cmocka_unit_test(top_p_with_a_light_tail),
        cmocka_unit_test(top_p_with_a_misleading_sample),
        cmocka_unit_test(top_k_of_distinct_tokens),
        cmocka_unit_test(top_k_among_equal_logits),
        cmocka_unit_test(zeros_of_both_signs_tie),
        cmocka_unit_test(boundaries_of_min_p),
        cmocka_unit_test(orders_of_rules_by_hand),
        cmocka_unit_test(single_survivor_is_drawn),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
