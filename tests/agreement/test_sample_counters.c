/* SPDX-License-Identifier: Apache-2.0
 *
 * first_sample is a row parameter: each row of a batch draws the bits that it draws alone, with its
 * own counter given as one value for all rows.
 */
#include "outcome.h"
#include "plans.h"
#include "requests.h"

#include <gumbel/drafts.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

#define ROWS_MAX 64

/* Counters of rows: the two that wrap around within a few samples, and others. */
static void fill_counters(uint32_t *counters, uint64_t seed)
{
    for (int b = 0; b < ROWS_MAX; b++)
        counters[b] = b % 5 == 1 ? UINT32_MAX - (uint32_t)b % 2 : (uint32_t)random_bits(&seed);
}

static gumbel_row_u32 one_for_all(const uint32_t *counter)
{
    return (gumbel_row_u32){counter, GUMBEL_SAME};
}

/* ----------------------------------------------------------------------- heads and logits ---- */

static void check_problem(gumbel_device *device, problem_plan plan, int64_t stride)
{
    uint32_t counters[3 * ROWS_MAX] = {0};
    fill_counters(counters, plan.seed);
    for (int64_t b = ROWS_MAX - 1; b >= 0 && stride > 1; b--)
        counters[b * stride] = counters[b];
    problem *generated = problem_make(&plan);
    generated->sampling.first_sample = (gumbel_row_u32){counters, stride};
    outcome *whole = outcome_make(plan.batch, generated->plan.samples);
    outcome *row = outcome_make(1, generated->plan.samples);
    assert_int_equal(draw(device, &generated->head, &generated->sampling, whole), GUMBEL_OK);
    for (int64_t b = 0; b < plan.batch; b++) {
        gumbel_head head;
        gumbel_sampling sampling;
        problem_rows(generated, b, 1, &head, &sampling);
        sampling.first_sample = one_for_all(&counters[b * (stride ? stride : 1)]);
        assert_int_equal(draw(device, &head, &sampling, row), GUMBEL_OK);
        assert_true(outcome_same(whole, b, row, OUTCOME_ALL, problem_describe(&plan)));
    }
    outcome_free(row);
    outcome_free(whole);
    problem_free(generated);
}

static void heads(void **state)
{
    for (int i = 0; i < (TEST_SANITIZED ? 20 : 120); i++)
        check_problem(*state, plan_at_random(i), i % 4);
}

/* ------------------------------------------------------------------------------ requests ---- */

static gumbel_status draw_request(gumbel_device *device, const request *req, int fused,
                                  outcome *into)
{
    return fused ? request_draw_fused(device, req, into) : request_draw(device, req, into);
}

/* All transforms and cuts. */
static void check_request(gumbel_device *device, int index, int fused)
{
    uint32_t counters[ROWS_MAX];
    const request_plan plan = request_plan_at_random(index, fused);
    request *req = request_make(&plan, device);
    fill_counters(counters, plan.seed);
    assert_true(plan.batch <= ROWS_MAX);
    req->sampling.first_sample = (gumbel_row_u32){counters, 0};
    outcome *whole = request_outcome(req);
    assert_int_equal(draw_request(device, req, fused, whole), GUMBEL_OK);
    for (int64_t b = 0; b < plan.batch; b++) {
        request part;
        request_rows(req, b, 1, &part);
        part.sampling.first_sample = one_for_all(&counters[b]);
        outcome *row = request_outcome(&part);
        assert_int_equal(draw_request(device, &part, fused, row), GUMBEL_OK);
        assert_true(outcome_same(whole, b, row, OUTCOME_ALL, request_describe(&plan)));
        outcome_free(row);
    }
    outcome_free(whole);
    request_free(req);
}

static void requests(void **state)
{
    for (int i = 0; i < (TEST_SANITIZED ? 12 : 80); i++)
        check_request(*state, i, i % 2);
}

/* -------------------------------------------------------------------- slots and live rows ---- */

enum { B = 6, SLOTS = 9, V = 700, S = 3 };

/* Logits of B rows in one buffer, which the caller frees. */
static gumbel_logits make_logits(uint64_t seed)
{
    float *values = make_zeroed(B * V, sizeof *values);
    for (int i = 0; i < B * V; i++)
        values[i] = 2 * random_normal(&seed);
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = tensor_of(values, GUMBEL_FLOAT32, B, V, 0)};
}

static void free_logits(const gumbel_logits *logits)
{
    free((void *)(uintptr_t)logits->logits.data);
}

static void slots_and_live_rows(void **state)
{
    static const int32_t of_row[B] = {4, 0, 8, 3, 7, 1}, live = B - 1;
    const uint64_t seeds[SLOTS] = {5, 6, 7, 8, 9, 10, 11, 12, 13};
    uint32_t counters[ROWS_MAX];
    fill_counters(counters, 3);
    const gumbel_logits logits = make_logits(17);
    gumbel_sampling how = {.struct_size = sizeof how,
                           .seed = {seeds, 0},
                           .first_sample = {counters, 0},
                           .num_samples = S,
                           .slots = {of_row, SLOTS},
                           .live_rows = &live};
    outcome *slotted = outcome_make(B, S), *one = outcome_make(B, S);
    assert_int_equal(draw_logits(*state, &logits, &how, slotted), GUMBEL_OK);
    for (int b = 0; b < live; b++) {
        how.first_sample = one_for_all(&counters[of_row[b]]);
        assert_int_equal(draw_logits(*state, &logits, &how, one), GUMBEL_OK);
        assert_memory_equal(&one->scores[b * S], &slotted->scores[b * S], S * sizeof(float));
        assert_memory_equal(&one->tokens[b * S], &slotted->tokens[b * S], S * sizeof(int32_t));
    }
    assert_int_equal(slotted->status[live], GUMBEL_ROW_UNUSED);
    outcome_free(slotted);
    outcome_free(one);
    free_logits(&logits);
}

/* Rows of one text, at counters 0, 1, 2 .., draw what one row draws as its samples. */
static void rows_are_samples(void **state)
{
    const uint64_t seeds[B] = {77, 77, 77, 77, 77, 77}, position = 12;
    const uint32_t counters[B] = {UINT32_MAX - 1, UINT32_MAX, 0, 1, 2, 3};
    const gumbel_logits logits = make_logits(18);
    for (int b = 1; b < B; b++)
        memcpy((float *)(uintptr_t)logits.logits.data + b * V, logits.logits.data,
               V * sizeof(float));
    gumbel_sampling how = {.struct_size = sizeof how,
                           .seed = {seeds, 0},
                           .position = {&position, GUMBEL_SAME},
                           .first_sample = {counters, 0}};
    gumbel_logits first = logits;
    first.logits.rows = 1;
    outcome *rows = outcome_make(B, 1), *samples = outcome_make(1, B);
    assert_int_equal(draw_logits(*state, &logits, &how, rows), GUMBEL_OK);
    how.num_samples = B;
    assert_int_equal(draw_logits(*state, &first, &how, samples), GUMBEL_OK);
    assert_memory_equal(rows->tokens, samples->tokens, B * sizeof(int32_t));
    assert_memory_equal(rows->scores, samples->scores, B * sizeof(float));
    outcome_free(rows);
    outcome_free(samples);
    free_logits(&logits);
}

/* --------------------------------------------------------------------- noise and summaries ---- */

/* Noise made ahead, and two shards that are merged, give the plain draw's outcome. */
static void noise_and_summaries(void **state)
{
    enum { CUT = 320 };
    static float noise[B * S * V];
    static gumbel_summary parts[2][B * S];
    const uint64_t seed = 21;
    uint32_t counters[ROWS_MAX];
    fill_counters(counters, 4);
    const gumbel_logits logits = make_logits(19);
    gumbel_sampling how = {.struct_size = sizeof how,
                           .seed = {&seed, GUMBEL_SAME},
                           .first_sample = {counters, 0},
                           .num_samples = S};
    outcome *plain = outcome_make(B, S), *found = outcome_make(B, S);
    assert_int_equal(draw_logits(*state, &logits, &how, plain), GUMBEL_OK);
    for (int k = 0; k < 2; k++) {
        gumbel_logits shard = logits;
        shard.logits.data = (const float *)logits.logits.data + k * CUT;
        shard.logits.cols = k ? V - CUT : CUT;
        shard.logits.stride = V;
        shard.first_token = k * CUT;
        shard.vocab_size = V;
        size_t bytes;
        assert_int_equal(gumbel_workspace_size(*state, NULL, &shard, &how, NULL, &bytes, NULL),
                         GUMBEL_OK);
        void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
        assert_int_equal(
            gumbel_partial_logits(*state, NULL, &shard, &how, parts[k], workspace, bytes, NULL),
            GUMBEL_OK);
        free(workspace);
    }
    outcome_poison(found);
    assert_int_equal(gumbel_finish(NULL, NULL, parts[0], 2, B, S, &found->output, NULL), GUMBEL_OK);
    assert_true(outcome_same(plain, 0, found, OUTCOME_ALL, "two shards"));
    assert_int_equal(gumbel_prepare_noise(*state, NULL, &how, B, 0, V, noise, 0, NULL), GUMBEL_OK);
    how.noise = noise;
    how.first_sample = (gumbel_row_u32){NULL, 0};
    assert_int_equal(draw_logits(*state, &logits, &how, found), GUMBEL_OK);
    assert_true(outcome_same(plain, 0, found, OUTCOME_ALL, "noise made ahead"));
    outcome_free(plain);
    outcome_free(found);
    free_logits(&logits);
}

/* -------------------------------------------------------------------------------- drafts ---- */

/* Each request of a verification draws its nodes with the request's counter. */
static void drafts(void **state)
{
    enum { REQUESTS = 3, NODES = 2 };
    static const int32_t drafted[B] = {0, 5, 0, 6, 0, 7};
    const uint64_t seeds[B] = {1, 1, 2, 2, 3, 3}, positions[B] = {40, 41, 50, 51, 60, 61};
    const uint64_t of_requests[REQUESTS] = {40, 50, 60}, request_seeds[REQUESTS] = {1, 2, 3};
    const uint32_t counters[REQUESTS] = {9, 0, UINT32_MAX};
    const uint32_t each[B] = {9, 9, 0, 0, UINT32_MAX, UINT32_MAX};
    const gumbel_logits logits = make_logits(20);
    const gumbel_sampling plain = {.struct_size = sizeof plain,
                                   .seed = {seeds, 0},
                                   .position = {positions, 0},
                                   .first_sample = {each, 0}};
    const gumbel_sampling how = {.struct_size = sizeof how,
                                 .seed = {request_seeds, 0},
                                 .position = {of_requests, 0},
                                 .first_sample = {counters, 0}};
    outcome *rows = outcome_make(B, 1), *wanted = outcome_make(B, 1);
    int32_t tokens[B], emitted[REQUESTS];
    const gumbel_draft draft = {
        .struct_size = sizeof draft, .requests = REQUESTS, .max_nodes = NODES, .tokens = drafted};
    const gumbel_verified verified = {.struct_size = sizeof verified,
                                      .tokens = tokens,
                                      .emitted = emitted,
                                      .rows = &rows->output};
    size_t bytes;
    assert_int_equal(draw_logits(*state, &logits, &plain, wanted), GUMBEL_OK);
    assert_int_equal(
        gumbel_verify_workspace_size(*state, NULL, &logits, &how, &draft, &verified, &bytes, NULL),
        GUMBEL_OK);
    void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_int_equal(gumbel_verify_logits(*state, NULL, &logits, &how, &draft, &verified, workspace,
                                          bytes, NULL),
                     GUMBEL_OK);
    assert_true(outcome_same(wanted, 0, rows, OUTCOME_ALL, "rows of a verification"));
    for (int r = 0; r < REQUESTS; r++)
        assert_int_equal(tokens[r * NODES], wanted->tokens[r * NODES]);
    free(workspace);
    outcome_free(rows);
    outcome_free(wanted);
    free_logits(&logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads),
        cmocka_unit_test(requests),
        cmocka_unit_test(slots_and_live_rows),
        cmocka_unit_test(rows_are_samples),
        cmocka_unit_test(noise_and_summaries),
        cmocka_unit_test(drafts),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
