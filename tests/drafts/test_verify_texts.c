/* SPDX-License-Identifier: Apache-2.0
 *
 * Verification by the coupled rule: for any drafts, the text equals the text decoded step by step,
 * bit for bit.
 */
#include "draft_cycles.h"
#include "outcome.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

#define REQUESTS_MAX 8

/* Verifies every text from its first token to its end. */
static void verified_texts_match_step_by_step_decoding(void **state)
{
    int64_t cycles = 0, emitted = 0;
    for (int index = 0; index < 60; index++) {
        const texts_plan plan = texts_plan_at_random(index);
        texts *of = texts_make(&plan, *state);
        int32_t progress[REQUESTS_MAX] = {0};
        uint64_t random = (uint64_t)index;
        for (int turn = 0; turn < 12; turn++) {
            cycle *req = cycle_make(of, progress, &random);
            verified_arrays *found =
                verified_make(plan.requests, req->max_nodes, plan.requests + 3);
            assert_true(cycle_is_within_limits(*state, req, found));
            assert_int_equal(cycle_verify(*state, req, found), GUMBEL_OK);
            if (!cycle_agrees(req, progress, found, 0))
                fail_msg("plan %d, cycle %d", index, turn);
            for (int32_t r = 0; r < plan.requests; r++) {
                emitted += found->emitted[r];
                progress[r] += found->emitted[r];
                cycles += found->emitted[r] > 0;
                if (progress[r] + 10 > plan.length)
                    progress[r] = 0;
            }
            verified_free(found);
            cycle_free(req);
        }
        texts_free(of);
    }
    assert_true(cycles > 1000 && emitted > cycles * 3 / 2); /* some drafts are accepted */
}

/* ----------------------------------------------------------------------------- refusals ---- */

enum { ROWS = 6, REQUESTS = 2, NODES = 3, VOCAB = 8 };

/* A valid call of two requests with three nodes. */
typedef struct right_call {
    float values[ROWS * VOCAB];
    int32_t nodes_tokens[ROWS], offsets[REQUESTS + 1], nodes[REQUESTS], parents[ROWS];
    int32_t limit[REQUESTS], tokens[REQUESTS * NODES], emitted[REQUESTS];
    uint64_t position[REQUESTS];
    gumbel_logits logits;
    gumbel_sampling sampling;
    gumbel_draft draft;
    gumbel_verified verified;
} right_call;

static void make_right(right_call *c)
{
    memset(c, 0, sizeof *c);
    for (int32_t r = 0; r <= REQUESTS; r++)
        c->offsets[r] = r * NODES;
    for (int32_t r = 0; r < REQUESTS; r++)
        c->nodes[r] = c->limit[r] = NODES;
    for (int32_t j = 0; j < ROWS; j++)
        c->parents[j] = j % NODES ? j % NODES - 1 : 0;
    c->logits = (gumbel_logits){.struct_size = sizeof c->logits,
                                .logits = tensor_of(c->values, GUMBEL_FLOAT32, ROWS, VOCAB, 0)};
    c->sampling =
        (gumbel_sampling){.struct_size = sizeof c->sampling, .position = {c->position, 0}};
    c->draft = (gumbel_draft){.struct_size = sizeof c->draft,
                              .requests = REQUESTS,
                              .max_nodes = NODES,
                              .tokens = c->nodes_tokens,
                              .offsets = c->offsets,
                              .nodes = c->nodes,
                              .parents = c->parents,
                              .limit = c->limit};
    c->verified = (gumbel_verified){.struct_size = sizeof c->verified,
                                    .tokens = c->tokens,
                                    .emitted = c->emitted,
                                    .position = c->position};
    memset(c->tokens, 0x5A, sizeof c->tokens);
}

/* A change of a valid call, and the field that the error must name; NULL: the call stays valid. */
typedef struct call_change {
    const char *field;
    void (*make)(right_call *c);
} call_change;

#define CHANGE(name, ...)                                                                          \
    static void name(right_call *c) { __VA_ARGS__; }

static const int32_t given[REQUESTS] = {1, 2};
static const float noise[ROWS * VOCAB];
static const uint64_t one_position = 3;
static const int64_t falling[REQUESTS + 1] = {2, 1, 1};
static const int32_t some_ids[2] = {1, 2}, one_live = 1, three_live = 3;

CHANGE(nothing, (void)c)
CHANGE(no_requests, c->draft.requests = 0)
CHANGE(negative_requests, c->draft.requests = -1)
CHANGE(no_nodes, c->draft.max_nodes = 0)
CHANGE(many_nodes, c->draft.max_nodes = GUMBEL_NODES_MAX + 1)
CHANGE(no_rule, c->draft.rule = (gumbel_rule)3)
CHANGE(no_draft_tokens, c->draft.tokens = NULL)
CHANGE(no_room, c->draft.offsets = NULL; c->draft.max_nodes = NODES + 1)
CHANGE(falls, c->offsets[1] = 4; c->offsets[2] = 3)
CHANGE(is_negative, c->offsets[0] = -1)
CHANGE(is_beyond, c->offsets[2] = ROWS + 1; c->draft.max_nodes = ROWS)
CHANGE(is_wide, c->offsets[1] = 2; c->draft.nodes = NULL)
CHANGE(negative_nodes, c->nodes[1] = -1)
CHANGE(more_nodes, c->nodes[0] = NODES + 1)
CHANGE(own_parent, c->parents[4] = 1)
CHANGE(negative_parent, c->parents[2] = -1)
CHANGE(negative_limit, c->limit[0] = -1)
CHANGE(falling_stop, c->draft.stop = (gumbel_token_lists){.offsets = falling, .ids = some_ids})
CHANGE(lse_alone, c->draft.lse = noise)
CHANGE(logprobs_alone, c->draft.logprobs = noise)
CHANGE(no_tokens, c->verified.tokens = NULL)
CHANGE(no_emitted, c->verified.emitted = NULL)
CHANGE(crooked, c->verified.path = (int32_t *)((char *)c->tokens + 2))
CHANGE(many_samples, c->sampling.num_samples = 2)
CHANGE(is_given, c->sampling.given = (gumbel_row_i32){given, 0})
CHANGE(has_noise, c->sampling.noise = noise)
CHANGE(one_for_all, c->sampling.position = (gumbel_row_u64){c->position, GUMBEL_SAME})
CHANGE(too_many_live, c->sampling.live_rows = &three_live)
CHANGE(unused_is_free, c->sampling.live_rows = &one_live; c->offsets[2] = -7; c->nodes[1] = 99)
CHANGE(apart, c->sampling.position = (gumbel_row_u64){&one_position, GUMBEL_SAME})
CHANGE(roots_are_free, c->parents[3] = 77; c->nodes_tokens[0] = -5)

static void invalid_drafts_return_an_error_by_name(void **state)
{
    static const call_change mistakes[] = {
        {NULL, nothing},
        {"draft.requests", no_requests},
        {"draft.requests", negative_requests},
        {"draft.max_nodes", no_nodes},
        {"draft.max_nodes", many_nodes},
        {"draft.rule", no_rule},
        {"draft.tokens", no_draft_tokens},
        {"draft.offsets", no_room},
        {"draft.offsets", falls},
        {"draft.offsets", is_negative},
        {"draft.offsets", is_beyond},
        {"draft.offsets", is_wide},
        {"draft.nodes", negative_nodes},
        {"draft.nodes", more_nodes},
        {"draft.parents", own_parent},
        {"draft.parents", negative_parent},
        {"draft.limit", negative_limit},
        {"draft.stop", falling_stop},
        {"draft.logprobs", lse_alone},
        {"draft.lse", logprobs_alone},
        {"verified.tokens", no_tokens},
        {"verified.emitted", no_emitted},
        {"verified.path", crooked},
        {"sampling.num_samples", many_samples},
        {"sampling.given", is_given},
        {"sampling.noise", has_noise},
        {"verified.position", one_for_all},
        {"sampling.live_rows", too_many_live},
        {NULL, unused_is_free},
        {NULL, apart},
        {NULL, roots_are_free},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        static _Alignas(64) char workspace[1 << 16];
        right_call c, before;
        gumbel_error error = {"", ""};
        make_right(&c);
        mistakes[i].make(&c);
        before = c;
        gumbel_status status =
            gumbel_verify_logits(*state, NULL, &c.logits, &c.sampling, &c.draft, &c.verified,
                                 workspace, sizeof workspace, &error);
        if (mistakes[i].field) {
            assert_int_equal(status, GUMBEL_ERROR_ARGUMENT);
            assert_string_equal(error.field, mistakes[i].field);
            assert_memory_equal(&c, &before, sizeof c);
        } else {
            assert_int_equal(status, GUMBEL_OK);
            assert_true(c.emitted[0] >= 1);
        }
    }
}

/* A workspace that is one byte short or misaligned is an error; 0 requests need none. */
static void wrong_workspaces_return_an_error(void **state)
{
    static _Alignas(64) char workspace[1 << 16];
    size_t bytes = 0;
    right_call c;
    gumbel_error error;
    make_right(&c);
    assert_int_equal(gumbel_verify_workspace_size(*state, NULL, &c.logits, &c.sampling, &c.draft,
                                                  &c.verified, &bytes, &error),
                     GUMBEL_OK);
    assert_true(bytes > 0 && bytes < sizeof workspace);
    for (int wrong = 0; wrong < 3; wrong++) {
        assert_int_equal(gumbel_verify_logits(*state, NULL, &c.logits, &c.sampling, &c.draft,
                                              &c.verified, wrong == 2 ? NULL : workspace + wrong,
                                              bytes - (wrong == 0), &error),
                         GUMBEL_ERROR_WORKSPACE);
    }
    assert_int_equal(c.tokens[0], 0x5A5A5A5A);
    c.draft.requests = 0;
    c.logits.logits.rows = 0;
    assert_int_equal(gumbel_verify_logits(*state, NULL, &c.logits, &c.sampling, &c.draft,
                                          &c.verified, NULL, 0, &error),
                     GUMBEL_OK);
}

/* ------------------------------------------------------------- what the header promises ---- */

static void verify_right(gumbel_device *device, const right_call *c)
{
    static _Alignas(64) char workspace[1 << 16];
    gumbel_error error = {"", ""};
    if (gumbel_verify_logits(device, NULL, &c->logits, &c->sampling, &c->draft, &c->verified,
                             workspace, sizeof workspace, &error) != GUMBEL_OK)
        fail_msg("%s: %s", error.field, error.message);
}

/* Drafts the tokens that request 0 will draw, so that all are accepted. All rows are equal, except
 * an invalid one. */
static void draft_own_draws(gumbel_device *device, right_call *c)
{
    int32_t drawn[ROWS];
    const gumbel_output rows = {.struct_size = sizeof rows, .tokens = drawn};
    c->sampling.live_rows = &one_live;
    c->verified.rows = &rows;
    c->verified.position = NULL;
    verify_right(device, c);
    for (int j = 1; j < NODES; j++)
        c->nodes_tokens[j] = drawn[j - 1];
    c->verified.rows = NULL;
}

/* `finished` with a limit of M tokens and without a limit; `status` of a row without a token. */
static void finished_and_status_of_requests(void **state)
{
    int32_t finished[REQUESTS], status[REQUESTS], accepted[REQUESTS];
    right_call c;
    make_right(&c);
    draft_own_draws(*state, &c);
    c.verified.finished = finished;
    c.verified.status = status;
    c.verified.accepted = accepted;
    verify_right(*state, &c);
    assert_int_equal(c.emitted[0], NODES);
    assert_int_equal(finished[0], GUMBEL_FINISHED_LIMIT);
    assert_int_equal(status[1], GUMBEL_ROW_UNUSED);
    c.draft.limit = NULL;
    verify_right(*state, &c);
    assert_int_equal(c.emitted[0], NODES);
    assert_int_equal(finished[0], GUMBEL_FINISHED_NOT);
    c.values[1 * VOCAB] = NAN;
    verify_right(*state, &c);
    assert_int_equal(c.emitted[0], 1);
    assert_int_equal(accepted[0], 0);
    assert_int_equal(status[0], GUMBEL_ROW_NAN);
    assert_int_equal(finished[0], GUMBEL_FINISHED_NOT);
    c.draft.limit = c.limit;
    c.limit[0] = 0;
    verify_right(*state, &c);
    assert_int_equal(c.emitted[0], 0);
    assert_int_equal(status[0], GUMBEL_ROW_OK);
    assert_int_equal(finished[0], GUMBEL_FINISHED_LIMIT);
}

/* An unused request keeps its position; slots without a live request are not written. */
static void positions_of_requests_without_live_rows(void **state)
{
    static const int32_t of_row[REQUESTS] = {2, 0};
    uint64_t from[3] = {40, 50, 60}, to[3] = {1, 2, 3};
    right_call c;
    make_right(&c);
    c.sampling.live_rows = &one_live;
    c.sampling.position = (gumbel_row_u64){from, 0};
    c.verified.position = to;
    verify_right(*state, &c);
    assert_int_equal(to[0], 40 + (uint64_t)c.emitted[0]);
    assert_int_equal(to[1], 50);
    to[0] = 1;
    to[1] = 2;
    c.sampling.slots = (gumbel_slots){of_row, 3};
    verify_right(*state, &c);
    assert_int_equal(to[2], 60 + (uint64_t)c.emitted[0]);
    assert_true(to[0] == 1 && to[1] == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verified_texts_match_step_by_step_decoding),
        cmocka_unit_test(invalid_drafts_return_an_error_by_name),
        cmocka_unit_test(wrong_workspaces_return_an_error),
        cmocka_unit_test(finished_and_status_of_requests),
        cmocka_unit_test(positions_of_requests_without_live_rows),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
