/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs draw the same bits on every instruction set, thread count and tile, alone and in a
 * batch, by slots, as one sample of many, from hidden states and from logits, and as nodes of
 * verified drafts. Programs that list the rules of a gumbel_order have its bits, whether they are
 * drawn by the order or walked.
 */
#include "fixtures.h"
#include "requests.h"
#include "slotted.h"
#include "test_scale.h"

#include <gumbel/drafts.h>
#include <gumbel/screen.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static request_plan plan_programs(int index, int fused)
{
    request_plan plan = request_plan_at_random(30000 + index, fused);
    plan.truncation = 1;
    plan.programs = 1 + index % GUMBEL_PROGRAMS_MAX;
    plan.usual = index % 3 == 0;
    plan.cuts = REQUEST_TOP_K | REQUEST_TOP_P | REQUEST_MIN_P;
    return plan;
}

/* ------------------------------------------------------------------------ every division ---- */

static void compare_devices(const request *req, const outcome *expected, uint64_t *random)
{
    static const int32_t tiles[] = {64, 128, 192, 1024, 4096};
    gumbel_isa isas[4];
    const int count = list_isas(isas);
    outcome *found = request_outcome(req);
    for (int k = 0; k < count; k++) {
        const int32_t threads = 1 + (int32_t)random_below(random, 4);
        gumbel_device *device = open_device(isas[k], threads, tiles[random_below(random, 5)]);
        assert_int_equal(request_draw(device, req, found), GUMBEL_OK);
        assert_true(outcome_same(expected, 0, found, OUTCOME_ALL, request_describe(&req->plan)));
        if (req->product) {
            assert_int_equal(request_draw_fused(device, req, found), GUMBEL_OK);
            assert_true(
                outcome_same(expected, 0, found, OUTCOME_ALL, request_describe(&req->plan)));
        }
        gumbel_close(device);
    }
    outcome_free(found);
}

static void compare_slots(gumbel_device *device, const request *req, const outcome *expected,
                          uint64_t *random)
{
    slotted *slots = slotted_make(req, random);
    outcome *found = request_outcome(req);
    assert_int_equal(request_draw(device, &slots->req, found), GUMBEL_OK);
    assert_true(outcome_same(expected, 0, found, OUTCOME_ALL, request_describe(&req->plan)));
    outcome_free(found);
    slotted_free(slots);
}

/* Draws sample j of each row alone, by its own sample counter. */
static void compare_samples(gumbel_device *device, const request *req, const outcome *expected)
{
    const int64_t batch = req->plan.batch, samples = req->plan.samples;
    uint32_t *counters = make_zeroed((size_t)batch, sizeof *counters);
    for (int64_t j = 0; j < samples && !req->sampling.noise; j++) {
        request one;
        request_rows(req, 0, batch, &one);
        one.plan.samples = one.sampling.num_samples = 1;
        for (int64_t b = 0; b < batch; b++)
            counters[b] = row_u32(&req->sampling.first_sample, &req->sampling, b, 0) + (uint32_t)j;
        one.sampling.first_sample = (gumbel_row_u32){counters, 0};
        outcome *found = request_outcome(&one);
        assert_int_equal(request_draw(device, &one, found), GUMBEL_OK);
        for (int64_t b = 0; b < batch; b++) {
            const int64_t at = b * samples + j;
            assert_int_equal(found->tokens[b], expected->tokens[at]);
            assert_memory_equal(&found->scores[b], &expected->scores[at], sizeof(float));
            assert_memory_equal(&found->logprobs[b], &expected->logprobs[at], sizeof(float));
            assert_int_equal(found->ranks[b], expected->ranks[at]);
        }
        outcome_free(found);
    }
    free(counters);
}

static void check_plan(gumbel_device *reference, const request_plan *plan, uint64_t *random)
{
    request *req = request_make(plan, reference);
    outcome *expected = request_outcome(req);
    assert_int_equal(request_draw(reference, req, expected), GUMBEL_OK);
    compare_devices(req, expected, random);
    assert_true(request_same_alone(reference, req, expected));
    if (!req->sampling.noise)
        compare_slots(reference, req, expected, random);
    compare_samples(reference, req, expected);
    outcome_free(expected);
    request_free(req);
}

static void programs_from_logits(void **state)
{
    uint64_t random = 31;
    for (int i = 0; i < limit_count(200, 8); i++) {
        const request_plan plan = plan_programs(i, 0);
        check_plan(*state, &plan, &random);
    }
}

static void programs_from_hidden_states(void **state)
{
    uint64_t random = 32;
    for (int i = 0; i < limit_count(80, 8); i++) {
        const request_plan plan = plan_programs(i, 1);
        check_plan(*state, &plan, &random);
    }
}

/* A screen changes no bit, whether an order draws the programs or they are walked. */
static void programs_with_a_screen(void **state)
{
    for (int i = 0; i < limit_count(24, 8); i++) {
        request_plan plan = plan_programs(300 + i, 1);
        plan.vocab = 400;
        plan.vocab_size = plan.given_noise = 0;
        plan.programs = 1;
        request *req = request_make(&plan, *state);
        gumbel_screen screen = {NULL, 0, 0};
        size_t bytes;
        if (i % 2) {
            static const uint8_t by_order[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_TEMPERATURE,
                                                                    GUMBEL_PROGRAM_TOP_K};
            req->programs = (gumbel_programs){
                .struct_size = sizeof req->programs, .rules = by_order, .count = 1};
            req->truncation.min_p = req->truncation.top_p = (gumbel_row_f32){NULL, 0};
        }
        assert_int_equal(gumbel_screen_size(*state, &req->head.weight, &bytes, NULL), GUMBEL_OK);
        screen.bytes = bytes;
        screen.data = poisoned_workspace(bytes);
        assert_int_equal(
            gumbel_screen_prepare(*state, NULL, &req->head.weight, NULL, &screen, NULL), GUMBEL_OK);
        outcome *without = outcome_make(plan.batch, plan.samples),
                *with = outcome_make(plan.batch, plan.samples);
        assert_int_equal(request_draw_fused(*state, req, without), GUMBEL_OK);
        req->head.screen = screen;
        assert_int_equal(request_draw_fused(*state, req, with), GUMBEL_OK);
        assert_true(outcome_same(without, 0, with, OUTCOME_ALL, request_describe(&plan)));
        outcome_free(without);
        outcome_free(with);
        free(screen.data);
        request_free(req);
    }
}

/* Large enough for several threads, and for given tokens in slices of rows. */
static void large_batches(void **state)
{
    uint64_t random = 33;
    for (int i = 0; i < limit_count(6, 8); i++) {
        request_plan plan = plan_programs(100 + i, 0);
        plan.batch = i % 2 ? 300 : 9;
        plan.vocab = i % 2 ? 40 : 9001;
        plan.vocab_size = 0;
        check_plan(*state, &plan, &random);
    }
}

/* Given tokens have the outputs that the same tokens have when drawn. */
static void given_tokens(void **state)
{
    for (int i = 0; i < limit_count(40, 8); i++) {
        request_plan plan = plan_programs(200 + i, 0);
        plan.batch = i % 8 == 0 ? 300 : plan.batch;
        plan.first_token = plan.vocab_size = 0;
        plan.given_noise = 0;
        request *req = request_make(&plan, *state);
        outcome *drawn = request_outcome(req), *given = request_outcome(req);
        assert_int_equal(request_draw(*state, req, drawn), GUMBEL_OK);
        req->sampling.given = (gumbel_row_i32){drawn->tokens, 0};
        assert_int_equal(request_draw(*state, req, given), GUMBEL_OK);
        assert_true(outcome_same(drawn, 0, given, OUTCOME_TOKENS | OUTCOME_MASS | OUTCOME_FURTHER,
                                 request_describe(&plan)));
        outcome_free(drawn);
        outcome_free(given);
        request_free(req);
    }
}

/* -------------------------------------------------------------------------------- drafts ---- */

enum { NODES = 4 };

/* Rows of node `node` of every request, as a plain request whose rows are requests. */
static void view_node(const request *req, const uint64_t *position, int node, request *view)
{
    const size_t size = dtype_size(req->logits.logits.dtype);
    const int64_t stride = req->logits.logits.stride;
    *view = *req;
    view->plan.batch = req->plan.batch / NODES;
    view->logits.logits.data =
        (const char *)req->logits.logits.data + (size_t)(node * stride) * size;
    view->logits.logits.rows = view->plan.batch;
    view->logits.logits.stride = NODES * stride;
    view->sampling.position = (gumbel_row_u64){position, 0};
}

/* Verifies chains of drafts, most of them right, and compares each node with a plain draw. */
static void check_chains(gumbel_device *device, int index)
{
    request_plan plan = plan_programs(400 + index, 0);
    plan.transforms = plan.given_noise = 0;
    plan.samples = 1;
    plan.first_token = plan.vocab_size = 0;
    plan.batch = NODES * 3;
    plan.num_top = 0;
    request *req = request_make(&plan, device);
    const int64_t count = plan.batch / NODES;
    outcome *rows = request_outcome(req);
    int32_t drafts[NODES * 3], tokens[NODES * 3], emitted[3], accepted[3];
    uint64_t positions[3];
    size_t bytes;
    for (int node = 0; node < NODES; node++) {
        request view;
        for (int64_t r = 0; r < count; r++)
            positions[r] = row_u64(&req->sampling.position, &req->sampling, r, 0) + (uint64_t)node;
        view_node(req, positions, node, &view);
        outcome *plain = request_outcome(&view);
        assert_int_equal(request_draw(device, &view, plain), GUMBEL_OK);
        for (int64_t r = 0; r < count; r++) {
            const int64_t at = r * NODES + node;
            rows->tokens[at] = plain->tokens[r];
            rows->scores[at] = plain->scores[r];
            rows->logprobs[at] = plain->logprobs[r];
            rows->lse[at] = plain->lse[r];
            rows->status[at] = plain->status[r];
            rows->ranks[at] = plain->ranks[r];
            rows->kept[at] = plain->kept[r];
            if (node + 1 < NODES) /* node 2 of request 1 is wrong */
                drafts[at + 1] = plain->tokens[r] + (r == 1 && node == 1);
        }
        outcome_free(plain);
    }
    outcome *found = request_outcome(req);
    gumbel_draft draft = {
        .struct_size = sizeof draft, .requests = count, .max_nodes = NODES, .tokens = drafts};
    gumbel_verified to = {.struct_size = sizeof to,
                          .tokens = tokens,
                          .emitted = emitted,
                          .accepted = accepted,
                          .rows = &found->output};
    assert_int_equal(gumbel_verify_workspace_size(device, NULL, &req->logits, &req->sampling,
                                                  &draft, &to, &bytes, NULL),
                     GUMBEL_OK);
    void *workspace = poisoned_workspace(bytes);
    assert_int_equal(report_call("gumbel_verify_logits",
                                 gumbel_verify_logits(device, NULL, &req->logits, &req->sampling,
                                                      &draft, &to, workspace, bytes, &found->error),
                                 &found->error),
                     GUMBEL_OK);
    assert_true(outcome_same(rows, 0, found, OUTCOME_ALL, request_describe(&plan)));
    for (int64_t r = 0; r < count; r++) {
        int good = 0;
        /* A node whose row has no token is not accepted. */
        while (good < NODES - 1 && rows->status[r * NODES + good] == GUMBEL_ROW_OK &&
               rows->status[r * NODES + good + 1] == GUMBEL_ROW_OK &&
               rows->tokens[r * NODES + good] == drafts[r * NODES + good + 1])
            good++;
        assert_int_equal(accepted[r], good);
        assert_int_equal(emitted[r], good + (rows->status[r * NODES + good] == GUMBEL_ROW_OK));
        for (int i = 0; i < emitted[r]; i++)
            assert_int_equal(tokens[r * NODES + i], rows->tokens[r * NODES + i]);
    }
    free(workspace);
    outcome_free(rows);
    outcome_free(found);
    request_free(req);
}

static void drafts_are_verified_by_plain_draws(void **state)
{
    for (int i = 0; i < limit_count(150, 8); i++)
        check_chains(*state, i);
}

/* -------------------------------------------------------------------------- equal orders ---- */

/* Whether a call walks its programs; otherwise an order draws them. The explanation lists what the
 * call requires. */
static int walks_programs(gumbel_device *device, const request *req, const gumbel_output *output)
{
    char text[2048];
    assert_int_equal(
        gumbel_explain(device, NULL, &req->logits, &req->sampling, output, text, sizeof text, NULL),
        GUMBEL_OK);
    return strstr(text, "programs") != NULL;
}

static void compare_processed(gumbel_device *device, const request *req, const float *expected)
{
    const int64_t size = req->plan.batch * req->plan.vocab;
    float *z = make_zeroed((size_t)size, sizeof *z);
    assert_int_equal(request_process(device, &req->logits, &req->sampling, z), GUMBEL_OK);
    for (int64_t i = 0; i < size; i++)
        assert_true(z[i] == expected[i] || (isnan(z[i]) && isnan(expected[i])));
    free(z);
}

/* Compares a program with its order: drawn by the order; walked because of min_keep, of an index
 * for each row, and of ranks. */
static void check_order(gumbel_device *device, int index, gumbel_order order)
{
    enum { BY_ORDER, MIN_KEEP, INDEX, RANKS, VARIANTS };
    static const int32_t one = 1, zero = 0;
    request_plan plan = request_plan_at_random(40000 + index, 0);
    plan.truncation = 1;
    plan.order = order;
    request *req = request_make(&plan, device);
    outcome *narrow = request_draw_rows(device, req, 0), *wide = request_draw_rows(device, req, 1);
    float *z = make_zeroed((size_t)(plan.batch * plan.vocab), sizeof *z);
    assert_int_equal(request_process(device, &req->logits, &req->sampling, z), GUMBEL_OK);
    const int has_program = request_set_order_program(req);
    req->truncation.order = (gumbel_order)(index % REQUEST_ORDERS); /* not read */
    for (int variant = 0; variant < VARIANTS && has_program; variant++) {
        req->programs.min_keep = (gumbel_row_i32){NULL, 0};
        req->programs.program = (gumbel_row_i32){NULL, 0};
        if (variant == MIN_KEEP)
            req->programs.min_keep = (gumbel_row_i32){&one, GUMBEL_SAME};
        if (variant == INDEX)
            req->programs.program = (gumbel_row_i32){&zero, GUMBEL_SAME};
        outcome *found = request_draw_rows(device, req, variant == RANKS);
        const outcome *expected = variant == RANKS ? wide : narrow;
        assert_int_equal(walks_programs(device, req, &found->output), variant != BY_ORDER);
        if (!outcome_same(expected, 0, found, OUTCOME_ALL, request_describe(&plan)))
            fail_msg("variant %d differs from the order", variant);
        compare_processed(device, req, z);
        outcome_free(found);
    }
    free(z);
    outcome_free(narrow);
    outcome_free(wide);
    request_free(req);
}

static void programs_equal_orders(void **state)
{
    for (int i = 0; i < limit_count(360, 8); i++)
        check_order(*state, i, (gumbel_order)(i % REQUEST_ORDERS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_from_logits),
        cmocka_unit_test(programs_from_hidden_states),
        cmocka_unit_test(programs_with_a_screen),
        cmocka_unit_test(large_batches),
        cmocka_unit_test(given_tokens),
        cmocka_unit_test(drafts_are_verified_by_plain_draws),
        cmocka_unit_test(programs_equal_orders),
    };
    return cmocka_run_group_tests(tests, open_reference, close_device);
}
