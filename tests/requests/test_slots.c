/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches as engines with continuous batching hold them: row parameters, masks and histories in
 * slots, and fewer live rows than a batch has.
 */
#include "fixtures.h"
#include "slotted.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

/* Requests of all kinds, from logits and, every third, from hidden states. */
static request *request_at(int index, gumbel_device *device)
{
    request_plan plan = request_plan_at_random(index, index % 3 == 0);
    plan.history = index % 2;
    return request_make(&plan, device);
}

static gumbel_status draw_either(gumbel_device *device, const request *req, outcome *into)
{
    return req->product ? request_draw_fused(device, req, into) : request_draw(device, req, into);
}

/* Rows draw from their slots what they draw from places of their own, whatever lies in others. */
static void slots_are_rows(void **state)
{
    uint64_t random = 71;
    for (int i = 0; i < 120; i++) {
        request *whole = request_at(i, *state);
        slotted *generated = slotted_make(whole, &random);
        outcome *expected = request_outcome(whole), *found = request_outcome(whole);
        assert_int_equal(draw_either(*state, whole, expected), GUMBEL_OK);
        assert_int_equal(draw_either(*state, &generated->req, found), GUMBEL_OK);
        assert_true(outcome_same(expected, 0, found, OUTCOME_ALL, request_describe(&whole->plan)));
        outcome_free(expected);
        outcome_free(found);
        slotted_free(generated);
        request_free(whole);
    }
}

/* One seed for all goes by slots, so that a request keeps its tokens wherever its row is. */
static void one_seed_for_all_slots(void **state)
{
    enum { B = 3, V = 500 };
    static const int32_t of_row[B] = {4, 0, 2};
    float logits[B * V];
    uint64_t seed = 72, seeds[B], random = 73;
    for (int i = 0; i < B * V; i++)
        logits[i] = random_normal(&random);
    for (int b = 0; b < B; b++)
        seeds[b] = gumbel_row_seed(seed, (uint64_t)of_row[b]);
    const gumbel_logits input = {.struct_size = sizeof input,
                                 .logits = tensor_of(logits, GUMBEL_FLOAT32, B, V, 0)};
    const gumbel_sampling each = {.struct_size = sizeof each, .seed = {seeds, 0}};
    const gumbel_sampling shared = {
        .struct_size = sizeof shared, .seed = {&seed, GUMBEL_SAME}, .slots = {of_row, 5}};
    outcome *expected = outcome_make(B, 1), *found = outcome_make(B, 1);
    assert_int_equal(draw_logits(*state, &input, &each, expected), GUMBEL_OK);
    assert_int_equal(draw_logits(*state, &input, &shared, found), GUMBEL_OK);
    assert_true(outcome_same(expected, 0, found, OUTCOME_ALL, "one seed for all slots"));
    outcome_free(expected);
    outcome_free(found);
}

/* Checks an unused row's outputs. */
static void assert_unused(const outcome *o, int64_t b)
{
    int32_t top = o->output.num_top;
    assert_int_equal(o->status[b], GUMBEL_ROW_UNUSED);
    assert_int_equal(o->kept[b], 0);
    assert_true(isnan(o->lse[b]));
    for (int64_t at = b * o->samples; at < (b + 1) * o->samples; at++) {
        assert_int_equal(o->tokens[at], -1);
        assert_int_equal(o->ranks[at], -1);
        assert_true(isnan(o->logprobs[at]) && isnan(o->scores[at]));
    }
    for (int64_t at = b * top; at < (b + 1) * top; at++) {
        assert_int_equal(o->top_ids[at], -1);
        assert_true(isnan(o->top_logprobs[at]));
    }
}

/* Live rows draw what they draw without the others, of which parameters may be anything. */
static void live_rows_alone(void **state)
{
    for (int i = 0; i < 60; i++) {
        request *req = request_at(i, *state), live = *req;
        const int64_t batch = req->plan.batch;
        outcome *expected = request_outcome(req), *found = request_outcome(req);
        assert_int_equal(draw_either(*state, req, expected), GUMBEL_OK);
        for (int32_t rows = 0; rows <= batch; rows += 1 + (int32_t)batch / 3) {
            live.sampling.live_rows = &rows;
            assert_int_equal(draw_either(*state, &live, found), GUMBEL_OK);
            outcome used = *found;
            used.batch = rows;
            assert_true(
                outcome_same(expected, 0, &used, OUTCOME_ALL, request_describe(&req->plan)));
            for (int64_t b = rows; b < batch; b++)
                assert_unused(found, b);
        }
        outcome_free(expected);
        outcome_free(found);
        request_free(req);
    }
}

/* Summaries and rows of unused rows. */
static void live_rows_of_parts(void **state)
{
    enum { B = 3, V = 70 };
    float logits[B * V], rows[B * V];
    const float temperature[B] = {1, 0.5f, -3};
    const int32_t live = 2;
    uint64_t random = 74;
    for (int i = 0; i < B * V; i++)
        logits[i] = random_normal(&random);
    const gumbel_logits input = {.struct_size = sizeof input,
                                 .logits = tensor_of(logits, GUMBEL_FLOAT32, B, V, 0)};
    const gumbel_sampling how = {
        .struct_size = sizeof how, .temperature = {temperature, 0}, .live_rows = &live};
    gumbel_summary *found = summarise(*state, NULL, &input, &how);
    assert_true(found[1].best_id >= 0 && found[2].best_id == -1);
    assert_int_equal(found[2].flags, 16);
    outcome *finished = outcome_make(B, 1);
    assert_int_equal(gumbel_finish(NULL, NULL, found, 1, B, 1, &finished->output, NULL), GUMBEL_OK);
    assert_int_equal(finished->status[2], GUMBEL_ROW_UNUSED);
    assert_int_equal(request_process(*state, &input, &how, rows), GUMBEL_OK);
    assert_true(!isnan(rows[V]) && isnan(rows[2 * V]) && isnan(rows[3 * V - 1]));
    outcome_free(finished);
    free(found);
}

/* Positions, rings and histories of slots. */
static void slots_of_steps(void **state)
{
    enum { B = 2, SLOTS = 4, V = 64, LENGTH = 3 };
    static const int32_t of_row[B] = {3, 1}, tokens[B] = {7, 9};
    const gumbel_slots slots = {of_row, SLOTS};
    uint64_t position[SLOTS] = {10, 11, 12, 13};
    int32_t ring[LENGTH][SLOTS], live = 1, counts[SLOTS][V] = {{0}};
    uint32_t prompt[SLOTS][2] = {{0}}, output[SLOTS][2] = {{0}};
    gumbel_step step = {.struct_size = sizeof step,
                        .batch = B,
                        .tokens = tokens,
                        .position = position,
                        .ring = ring[0],
                        .ring_length = LENGTH,
                        .slots = slots};
    memset(ring, 0xA7, sizeof ring);
    assert_int_equal(gumbel_advance(*state, NULL, &step, NULL), GUMBEL_OK);
    assert_int_equal(ring[13 % LENGTH][3], 7);
    assert_int_equal(ring[11 % LENGTH][1], 9);
    assert_true(position[0] == 10 && position[1] == 12 && position[2] == 12 && position[3] == 14);
    step.live_rows = &live;
    assert_int_equal(gumbel_advance(*state, NULL, &step, NULL), GUMBEL_OK);
    assert_true(position[1] == 12 && position[3] == 15);
    const gumbel_history history = {.struct_size = sizeof history,
                                    .vocab_size = V,
                                    .prompt = prompt[0],
                                    .output = output[0],
                                    .counts = counts,
                                    .count_bits = 32};
    const int64_t offsets[B + 1] = {0, 1, 3};
    const int32_t ids[] = {5, 6, 6};
    const gumbel_token_lists lists = {.offsets = offsets, .ids = ids};
    counts[1][40] = counts[0][40] = 3;
    assert_int_equal(gumbel_history_start(*state, NULL, &history, B, &slots, &lists, &lists, NULL),
                     GUMBEL_OK);
    assert_true(counts[3][5] == 1 && counts[1][6] == 2 && counts[1][40] == 0 && counts[0][40] == 3);
    assert_true(prompt[3][0] == 1u << 5 && output[1][0] == 1u << 6 && prompt[0][0] == 0);
    assert_int_equal(
        gumbel_history_update(*state, NULL, &history, B, &slots, tokens, 0, NULL, NULL), GUMBEL_OK);
    assert_true(counts[3][7] == 1 && counts[1][9] == 1);
    counts[1][9] = GUMBEL_COUNT_MAX;
    assert_int_equal(
        gumbel_history_update(*state, NULL, &history, B, &slots, tokens, 0, NULL, NULL), GUMBEL_OK);
    assert_int_equal(counts[1][9], GUMBEL_COUNT_MAX);
}

static void refusals(void **state)
{
    const float logits[4] = {0};
    const int32_t right[2] = {1, 0}, negative[2] = {0, -1}, large[2] = {0, 2}, minus = -1,
                  three = 3, two = 2;
    const gumbel_logits input = {.struct_size = sizeof input,
                                 .logits = tensor_of(logits, GUMBEL_FLOAT32, 2, 2, 0)};
    const struct {
        const char *field;
        gumbel_slots slots;
        const int32_t *live_rows;
    } bad[] = {
        {"sampling.slots", {negative, 2}, NULL},   {"sampling.slots", {large, 2}, NULL},
        {"sampling.slots", {right, 0}, NULL},      {"sampling.slots", {NULL, 2}, NULL},
        {"sampling.slots", {right, -1}, NULL},     {"sampling.live_rows", {NULL, 0}, &minus},
        {"sampling.live_rows", {NULL, 0}, &three},
    };
    outcome *drawn = outcome_make(2, 1);
    gumbel_sampling how = {.struct_size = sizeof how, .slots = {right, 2}, .live_rows = &two};
    assert_int_equal(draw_logits(*state, &input, &how, drawn), GUMBEL_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t bytes = 0;
        how.slots = bad[i].slots;
        how.live_rows = bad[i].live_rows;
        gumbel_error error = {"", ""};
        void *workspace = poisoned_workspace(1 << 20);
        bytes = 1 << 20;
        outcome_poison(drawn);
        assert_int_equal(gumbel_sample_logits(*state, NULL, &input, &how, &drawn->output, workspace,
                                              bytes, &error),
                         GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, bad[i].field);
        assert_true(outcome_untouched(drawn));
        free(workspace);
    }
    outcome_free(drawn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_rows),  cmocka_unit_test(one_seed_for_all_slots),
        cmocka_unit_test(live_rows_alone), cmocka_unit_test(live_rows_of_parts),
        cmocka_unit_test(slots_of_steps),  cmocka_unit_test(refusals),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
