/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of every kind: transforms, orders and ties of truncation, every output, on ordinary and
 * hostile rows, mixed in one batch. Four comparisons: the reference with the oracle; every
 * instruction set and thread count with the reference, bit by bit; the draw from hidden states with
 * the draw from the logits of their product; every row alone with the row in its batch.
 */
#include "fixtures.h"
#include "oracle_comparison.h"
#include "test_scale.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const int32_t tiles[] = {64, 128, 192, 1024, 4096};

/* Draws on every instruction set, with alternating thread counts and tile sizes, and compares. */
static void check_devices(const request *req, const outcome *expected, uint64_t *random)
{
    gumbel_isa isas[4];
    int count = list_isas(isas);
    outcome *found = request_outcome(req);
    for (int k = 0; k < count; k++) {
        int32_t threads = 1 + (int32_t)random_below(random, 4);
        gumbel_device *device = open_device(isas[k], threads, tiles[random_below(random, 5)]);
        const char *what = request_describe(&req->plan);
        assert_int_equal(request_draw(device, req, found), GUMBEL_OK);
        if (!outcome_same(expected, 0, found, OUTCOME_ALL, what))
            fail_msg("%s on %d threads differs from the reference", gumbel_isa_name(isas[k]),
                     (int)threads);
        if (req->product) {
            assert_int_equal(request_draw_fused(device, req, found), GUMBEL_OK);
            if (!outcome_same(expected, 0, found, OUTCOME_ALL, what))
                fail_msg("%s on %d threads: the results from hidden states and from logits differ",
                         gumbel_isa_name(isas[k]), (int)threads);
        }
        gumbel_close(device);
    }
    outcome_free(found);
}

static void check_plan(gumbel_device *reference, const request_plan *plan, uint64_t *random,
                       verdicts *seen)
{
    request *req = request_make(plan, reference);
    outcome *drawn = request_outcome(req);
    assert_int_equal(request_draw(reference, req, drawn), GUMBEL_OK);
    if (!compare_with_oracle(reference, req, drawn, seen))
        fail_msg("the oracle differs");
    check_devices(req, drawn, random);
    assert_true(request_same_alone(reference, req, drawn));
    outcome_free(drawn);
    request_free(req);
}

/* Rows near a cutoff must be rare, because their kept set is not checked exactly. Most of them are
 * rows with masses of 2^-24 and less, or with values 10^-3 apart. */
static void assert_few_near_cutoffs(const char *what, const verdicts *seen)
{
    print_verdicts(what, seen);
    assert_true(seen->near_cutoffs * 10 <= seen->rows);
    assert_true(seen->other_kept_sets * 50 <= seen->rows);
}

static void mixed_requests_from_logits(void **state)
{
    verdicts seen = {0};
    uint64_t random = 11;
    for (int i = 0; i < scale_count(400, 8); i++) {
        request_plan plan = request_plan_at_random(i, 0);
        plan.entropy = i % 2;
        check_plan(*state, &plan, &random, &seen);
    }
    assert_few_near_cutoffs("from logits", &seen);
}

static void mixed_requests_from_hidden_states(void **state)
{
    verdicts seen = {0};
    uint64_t random = 12;
    for (int i = 0; i < scale_count(120, 8); i++) {
        request_plan plan = request_plan_at_random(i, 1);
        plan.entropy = i % 2;
        check_plan(*state, &plan, &random, &seen);
    }
    assert_few_near_cutoffs("from hidden states", &seen);
}

/* Every kind of row, order and tie mode, with truncation alone. */
static void every_row_kind_order_and_tie(void **state)
{
    verdicts seen = {0};
    uint64_t random = 13;
    for (int kind = 1; kind <= ROW_ALL_KINDS; kind++)
        for (int order = 0; order < REQUEST_ORDERS; order++)
            for (int ties = 0; ties < 2; ties++) {
                request_plan plan = {.batch = TEST_SANITIZED ? 6 : 24,
                                     .vocab = 70 + kind * 97,
                                     .samples = 2,
                                     .num_top = 7,
                                     .entropy = 1,
                                     .order = (gumbel_order)order,
                                     .ties = (gumbel_ties)ties,
                                     .truncation = 1,
                                     .kind = kind,
                                     .seed = (uint64_t)(kind * 100 + order * 10 + ties)};
                check_plan(*state, &plan, &random, &seen);
            }
    assert_few_near_cutoffs("every kind, order and tie", &seen);
}

/* Large enough for many tiles and for a search of many steps. */
static void large_vocabularies(void **state)
{
    static const int64_t sizes[] = {8192, 32000, 50257, 151936};
    verdicts seen = {0};
    uint64_t random = 14;
    for (int i = 0; i < scale_count(6, 8); i++) {
        request_plan plan = {.batch = 8,
                             .vocab = sizes[i % 4],
                             .samples = 1,
                             .num_top = 20,
                             .order = (gumbel_order)(i % REQUEST_ORDERS),
                             .ties = (gumbel_ties)(i % 2),
                             .transforms = i % 2,
                             .truncation = 1,
                             .seed = 900 + (uint64_t)i};
        check_plan(*state, &plan, &random, &seen);
    }
    assert_few_near_cutoffs("large vocabularies", &seen);
}

/* Large enough that the library uses several threads. */
static void batches_large_enough_for_threads(void **state)
{
    verdicts seen = {0};
    uint64_t random = 15;
    for (int i = 0; i < scale_count(12, 8) || i < 3; i++) {
        int fused = i % 3 == 2;
        request_plan plan = request_plan_at_random(20000 + i, fused);
        plan.batch = 9;
        plan.vocab = fused ? 2003 : 9001;
        plan.hidden_size = fused ? 60 : 0;
        plan.vocab_size = i % 2 ? 0 : plan.first_token + plan.vocab - 70;
        check_plan(*state, &plan, &random, &seen);
    }
    assert_few_near_cutoffs("several threads", &seen);
}

/* Probabilities, rules, and the kept tokens (bit i: token i), computed by hand. */
typedef struct truncation_case {
    const float *p; /* [5] */
    float temperature, min_p, top_p;
    int32_t top_k;
    int order, ties;
    unsigned stays;
} truncation_case;

static void truncation_by_hand(void **state)
{
    enum { N = 5, CHAIN = 0, JOINT, BEFORE, LAST, LAST_BEFORE, JOINT_BEFORE, ALL = 0, EXACT = 1 };
    static const float distinct[N] = {0.11f, 0.30f, 0.25f, 0.10f, 0.24f};
    static const float tied[N] = {0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
    static const truncation_case cuts[] = {
        {distinct, 1, 0, 0.35f, 3, CHAIN, ALL, 0x02}, /* 0.30 is 0.38 of the mass kept by top_k */
        {distinct, 1, 0, 0.35f, 3, JOINT, ALL, 0x06},
        {distinct, 1, 0.5f, 1, 0, CHAIN, ALL, 0x16},
        {distinct, 1, 0.5f, 0.6f, 0, CHAIN, ALL, 0x06}, /* 0.6 of 0.79 is 0.47 */
        {distinct, 1, 0.5f, 0.6f, 0, JOINT, ALL, 0x16},
        {distinct, 1, 0, 0.8f, 0, CHAIN, ALL, 0x17},
        {distinct, 2, 0, 0.75f, 0, CHAIN, ALL, 0x17}, /* square roots: 1.54 < 0.75 * 2.19 */
        {distinct, 2, 0, 0.75f, 0, BEFORE, ALL, 0x16},
        {distinct, 2, 0.5f, 1, 0, CHAIN, ALL, 0x1f}, /* square roots: 0.316 > 0.5 * 0.548 */
        {distinct, 2, 0.5f, 1, 0, BEFORE, ALL, 0x16},
        {distinct, 0, 0.5f, 0.1f, 1, CHAIN, ALL, 0x1f}, /* greedy rows are not truncated */
        {distinct, 1, 1, 1, 0, CHAIN, ALL, 0x02},
        {tied, 1, 0, 1, 2, CHAIN, ALL, 0x0e},
        {tied, 1, 0, 1, 2, CHAIN, EXACT, 0x06},
        {tied, 1, 0, 1, 4, CHAIN, ALL, 0x1f},
        {tied, 1, 0, 1, 4, CHAIN, EXACT, 0x0f},
        {tied, 1, 0, 0.5f, 0, CHAIN, ALL, 0x0e},
        {tied, 1, 0, 0.5f, 0, CHAIN, EXACT, 0x06},
        {tied, 1, 0, 0.5f, 0, BEFORE, EXACT, 0x06},
        {tied, 1, 0, 0.3f, 0, CHAIN, ALL, 0x04},
        {tied, 1, 0, 0.65f, 2, JOINT, ALL, 0x0e},
        {tied, 1, 0, 0.65f, 2, JOINT, EXACT, 0x06},
        {tied, 1, 0, 1, 7, JOINT, EXACT, 0x1f},
        {distinct, 1, 0.82f, 0.5f, 0, CHAIN, ALL, 0x02}, /* 0.30 of the 0.55 kept by min_p */
        {distinct, 1, 0.82f, 0.5f, 0, LAST, ALL,
         0x06}, /* top_p of the whole mass 1; 0.24 is 0.8 of 0.30 */
        {distinct, 1, 0.82f, 0.5f, 3, CHAIN, ALL, 0x02},
        {distinct, 1, 0.82f, 0.5f, 3, LAST, ALL, 0x06}, /* of 0.79 */
        {distinct, 1, 0.82f, 0.35f, 3, LAST, ALL, 0x02},
        {distinct, 1, 0.82f, 0.35f, 3, JOINT, ALL, 0x06},
        {distinct, 1, 0.82f, 0.9f, 3, LAST, ALL, 0x06},
        {distinct, 2, 0.85f, 0.9f, 0, LAST, ALL, 0x16}, /* the root of 0.24 / 0.30 is 0.89 */
        {distinct, 2, 0.85f, 0.9f, 0, LAST_BEFORE, ALL, 0x02},
        {distinct, 2, 0.5f, 0.35f, 3, LAST_BEFORE, ALL, 0x02},
        {distinct, 2, 0.5f, 0.35f, 3, JOINT_BEFORE, ALL, 0x06},
        {distinct, 2, 0.85f, 0.35f, 3, JOINT_BEFORE, ALL, 0x02},
        {tied, 1, 0.3f, 0.65f, 2, LAST, ALL, 0x0e},
        {tied, 1, 0.3f, 0.65f, 2, LAST, EXACT, 0x04}, /* 0.4 of 0.6 */
    };
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        const truncation_case *at = &cuts[c];
        float logits[N], z[N];
        for (int i = 0; i < N; i++)
            logits[i] = logf(at->p[i]);
        gumbel_truncation truncation = {.struct_size = sizeof truncation,
                                        .min_p = {&at->min_p, GUMBEL_SAME},
                                        .top_k = {&at->top_k, GUMBEL_SAME},
                                        .top_p = {&at->top_p, GUMBEL_SAME},
                                        .order = (gumbel_order)at->order,
                                        .ties = (gumbel_ties)at->ties};
        gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                    .temperature = {&at->temperature, GUMBEL_SAME},
                                    .truncation = &truncation};
        gumbel_logits input = {.struct_size = sizeof input,
                               .logits = tensor_of(logits, GUMBEL_FLOAT32, 1, N, 0)};
        unsigned stays = 0;
        assert_int_equal(request_process(*state, &input, &sampling, z), GUMBEL_OK);
        for (int i = 0; i < N; i++)
            stays |= z[i] > -INFINITY ? 1u << i : 0;
        if (stays != at->stays)
            fail_msg("case %zu keeps %#x, not %#x", c, stays, at->stays);
    }
}

/* Equal logits have exact masses, so the kept set is that of the definition: top_p = j / n keeps j
 * of n tokens of equal mass. */
static void exact_boundaries_of_top_p(void **state)
{
    enum { N = 64 };
    static float logits[N];
    for (int64_t j = 1; j < N; j++) {
        float p = (float)j / N;
        gumbel_truncation truncation = {.struct_size = sizeof truncation,
                                        .top_p = {&p, GUMBEL_SAME},
                                        .ties = GUMBEL_TIES_EXACT};
        gumbel_sampling sampling = {.struct_size = sizeof sampling, .truncation = &truncation};
        gumbel_logits input = {.struct_size = sizeof input,
                               .logits = tensor_of(logits, GUMBEL_FLOAT32, 1, N, 0)};
        float processed[N];
        const float ps[] = {nextafterf(p, 0), p, nextafterf(p, 1)};
        for (int k = 0; k < 3; k++) {
            p = ps[k];
            assert_int_equal(request_process(*state, &input, &sampling, processed), GUMBEL_OK);
            for (int64_t i = 0; i < N; i++)
                assert_int_equal(processed[i] == 0, i < j + (k == 2));
            p = ps[1];
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncation_by_hand),
        cmocka_unit_test(exact_boundaries_of_top_p),
        cmocka_unit_test(every_row_kind_order_and_tie),
        cmocka_unit_test(mixed_requests_from_logits),
        cmocka_unit_test(mixed_requests_from_hidden_states),
        cmocka_unit_test(large_vocabularies),
        cmocka_unit_test(batches_large_enough_for_threads),
    };
    return cmocka_run_group_tests(tests, open_reference, close_device);
}
