/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases with known results, by all rules: greedy rows, as in vLLM's tests of its rejection sampler;
 * drafts that must be accepted, or rejected, whatever the acceptance coin; equal models; limits and
 * stop tokens. A verification must also write only its buffers, and be repeatable.
 */
#include "guard_pages.h"
#include "fixtures.h"
#include "outcome.h"
#include "statistics.h"
#include "test_scale.h"
#include "wide_drafts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RULES = 3, V = 12, M = 4 };

/* Requests of up to M nodes, padded, with rows set by hand. */
typedef struct small_call {
    int32_t requests;
    int32_t *tokens, *nodes, *limit;
    float *target, *draft;
    uint64_t *seed;
    float temperature;
    uint64_t position; /* of all requests */
    gumbel_token_lists stop;
    verified_arrays *found;
} small_call;

static small_call make_call(int32_t requests, float temperature)
{
    const size_t R = (size_t)requests;
    small_call c = {.requests = requests, .temperature = temperature};
    c.tokens = make_zeroed(R * M, sizeof *c.tokens);
    c.nodes = make_zeroed(R, sizeof *c.nodes);
    c.limit = make_zeroed(R, sizeof *c.limit);
    c.target = make_zeroed(R * M * V, sizeof *c.target);
    c.draft = make_zeroed(R * M * V, sizeof *c.draft);
    c.seed = make_zeroed(R, sizeof *c.seed);
    for (int32_t r = 0; r < requests; r++) {
        c.nodes[r] = c.limit[r] = M;
        c.seed[r] = 1000 + (uint64_t)r;
    }
    c.found = verified_make(requests, M, requests);
    return c;
}

static void free_call(small_call *c)
{
    void *owned[] = {c->tokens, c->nodes, c->limit, c->target, c->draft, c->seed};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    verified_free(c->found);
}

static gumbel_logits rows_of(const small_call *c, const float *rows)
{
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits =
                               tensor_of(rows, GUMBEL_FLOAT32, (int64_t)c->requests * M, V, 0)};
}

static void verify_call(gumbel_device *device, small_call *c, gumbel_rule rule)
{
    const gumbel_logits target = rows_of(c, c->target), draft = rows_of(c, c->draft);
    const gumbel_sampling how = {.struct_size = sizeof how,
                                 .temperature = {&c->temperature, GUMBEL_SAME},
                                 .seed = {c->seed, 0},
                                 .position = {&c->position, GUMBEL_SAME}};
    gumbel_sampling drafted = how;
    drafted.domain = GUMBEL_DOMAIN_DRAFT;
    const int has_ratio = rule != GUMBEL_RULE_COUPLED;
    const gumbel_draft d = {.struct_size = sizeof d,
                            .requests = c->requests,
                            .max_nodes = M,
                            .rule = rule,
                            .tokens = c->tokens,
                            .nodes = c->nodes,
                            .limit = c->limit,
                            .stop = c->stop,
                            .logits = has_ratio ? &draft : NULL,
                            .sampling = has_ratio ? &drafted : NULL};
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    assert_int_equal(gumbel_verify_workspace_size(device, NULL, &target, &how, &d, &c->found->to,
                                                  &bytes, &error),
                     GUMBEL_OK);
    void *workspace = poisoned_workspace(bytes);
    assert_int_equal(gumbel_verify_logits(device, NULL, &target, &how, &d, &c->found->to, workspace,
                                          bytes, &error),
                     GUMBEL_OK);
    free(workspace);
}

static float *find_row(float *rows, int32_t r, int32_t j)
{
    return rows + ((int64_t)r * M + j) * V;
}

/* ------------------------------------------------------------------------ known answers ---- */

/* A request: its drafts, the target's most likely tokens after the root and after each draft, and
 * the expected tokens; each list ends with 0. */
typedef struct greedy_case {
    int32_t drafts[M], likely[M + 1], emitted[M];
} greedy_case;

static void greedy_rows_match_known_results(void **state)
{
    static const greedy_case cases[] = {
        {{1, 2, 3}, {1, 2, 3, 4}, {1, 2, 3, 4}}, /* all match */
        {{1, 2, 3}, {1, 5, 3, 4}, {1, 5}},       /* the second draft is wrong */
        {{1, 2}, {1, 2, 5}, {1, 2, 5}},          /* requests of different lengths */
        {{3}, {3, 4}, {3, 4}},
        {{1}, {1, 2}, {1, 2}}, /* one draft */
        {{0}, {5}, {5}},       /* no draft */
        {{1, 2, 3}, {1, 2, 7, 6}, {1, 2, 7}},
        {{1, 2, 3}, {2, 2, 3, 4}, {2}},
    };
    enum { R = sizeof cases / sizeof *cases };
    for (int rule = 0; rule < RULES; rule++) {
        small_call c = make_call(R, 0);
        for (int32_t r = 0; r < R; r++) {
            int32_t drafts = 0;
            while (drafts + 1 < M && cases[r].drafts[drafts])
                drafts++;
            c.nodes[r] = drafts + 1;
            for (int32_t j = 0; j <= drafts; j++) {
                c.tokens[r * M + j] = j ? cases[r].drafts[j - 1] : 9;
                find_row(c.target, r, j)[cases[r].likely[j]] = 2;
            }
        }
        verify_call(*state, &c, (gumbel_rule)rule);
        for (int32_t r = 0; r < R; r++)
            for (int32_t i = 0; i < M; i++)
                assert_int_equal(c.found->tokens[r * M + i],
                                 cases[r].emitted[i] ? cases[r].emitted[i] : -1);
        free_call(&c);
    }
}

/* The ratio p / q of the drafted token. */
enum ratio { RATIO_MORE, RATIO_SAME, RATIO_NONE, RATIO_NEITHER, RATIOS };

/* The rows of both models before the drafted token 3. */
static void fill_ratio(small_call *c, int32_t r, int32_t j, enum ratio ratio)
{
    float *p = find_row(c->target, r, j), *q = find_row(c->draft, r, j);
    for (int i = 0; i < V; i++)
        p[i] = q[i] = 0.2f * (float)(i % 5);
    c->tokens[r * M + j] = j ? 3 : 0;
    if (ratio == RATIO_MORE)
        p[3] = q[3] + 1;
    if (ratio == RATIO_NONE || ratio == RATIO_NEITHER)
        p[3] = -INFINITY;
    if (ratio == RATIO_NEITHER)
        q[3] = -INFINITY;
}

/* If p >= q, a draft is accepted with any coin; if p = 0, it is rejected with any coin. The emitted
 * token has a positive probability. If the residual rounds to 0, the token is drawn from p. */
static void certain_results_ignore_the_coin(void **state)
{
    const int32_t requests = (int32_t)draws_of(20000) * nightly_factor();
    for (int rule = GUMBEL_RULE_REJECTION; rule <= GUMBEL_RULE_BLOCK; rule++)
        for (int ratio = 0; ratio < RATIOS; ratio++) {
            small_call c = make_call(requests, 1);
            int64_t counts[V] = {0};
            double law[V] = {0}, z[V];
            chi_squared found = {0};
            for (int32_t r = 0; r < requests; r++)
                for (int32_t j = 0; j < M; j++)
                    fill_ratio(&c, r, j, (enum ratio)ratio);
            verify_call(*state, &c, (gumbel_rule)rule);
            for (int i = 0; i < V; i++)
                z[i] = (double)find_row(c.target, 0, 0)[i];
            softmax(z, V, 1, law);
            for (int32_t r = 0; r < requests; r++) {
                assert_int_equal(c.found->accepted[r], ratio <= RATIO_SAME ? M - 1 : 0);
                counts[c.found->tokens[r * M + (ratio <= RATIO_SAME ? M - 1 : 0)]]++;
                assert_true(ratio <= RATIO_SAME || c.found->tokens[r * M] != 3);
            }
            if (ratio == RATIO_NEITHER || ratio == RATIO_NONE) {
                chi_squared_add(&found, counts, law, V, requests);
                assert_true(chi_squared_p(found.statistic, found.degrees) > 1e-4);
            }
            free_call(&c);
        }
}

/* Sets logits that give `token` probability 1 in both models. */
static void fill_certain_rows(small_call *c, int32_t r, int32_t j, int32_t token)
{
    for (int i = 0; i < V; i++)
        find_row(c->target, r, j)[i] = find_row(c->draft, r, j)[i] = i == token ? 0 : -INFINITY;
}

/* Two block verifications decide about one position; in the second, a certain draft precedes it.
 * The coin and the replacement of the draft must be independent of the first verification. */
static void block_cycles_use_independent_noise(void **state)
{
    const int32_t requests = 4000;
    small_call calls[2];
    int64_t alike = 0, rejected = 0, same = 0;
    for (int again = 0; again < 2; again++) {
        small_call *c = &calls[again];
        *c = make_call(requests, 1);
        c->position = 20 - (uint64_t)again;
        for (int32_t r = 0; r < requests; r++) {
            for (int32_t j = 0; j < M; j++)
                fill_certain_rows(c, r, j, 7);
            for (int i = 0; i < V; i++)
                find_row(c->target, r, again)[i] = find_row(c->draft, r, again)[i] = 0;
            find_row(c->draft, r, again)[3] = logf(4);
            c->nodes[r] = 2 + again;
            c->tokens[r * M + again] = again ? 7 : 0;
            c->tokens[r * M + again + 1] = 3;
        }
        verify_call(*state, c, GUMBEL_RULE_BLOCK);
    }
    for (int32_t r = 0; r < requests; r++) {
        const int32_t first = calls[0].found->accepted[r], second = calls[1].found->accepted[r] - 1;
        assert_true(first >= 0 && first <= 1 && second >= 0 && second <= 1);
        alike += first == second;
        rejected += !first && !second;
        same += !first && !second && /* the replacement of the draft */
                calls[0].found->tokens[r * M] == calls[1].found->tokens[r * M + 1];
    }
    /* The draft has p / q = 15 / 48, and 11 tokens can replace it. */
    print_message("%d of %d decided equally; %d of %d rejected twice with the same replacement\n",
                  (int)alike, (int)requests, (int)same, (int)rejected);
    assert_true(fabs((double)alike / requests - 0.57) < 0.04);
    assert_true(rejected > requests / 3 && same < rejected / 7);
    free_call(&calls[0]);
    free_call(&calls[1]);
}

/* ---------------------------------------------------------------------------------- ends ---- */

/* Limits, drafted stop tokens and requests without nodes, by all rules. The drafts are the target's
 * own certain tokens. */
static void limits_and_stop_tokens_end_requests(void **state)
{
    static const int64_t offsets[] = {0, 0, 0, 0, 1, 2};
    static const int32_t ids[] = {5, 4};
    for (int rule = 0; rule < RULES; rule++) {
        small_call c = make_call(5, 0.5f);
        for (int32_t r = 0; r < 5; r++)
            for (int32_t j = 0; j < M; j++) {
                for (int i = 0; i < V; i++)
                    find_row(c.target, r, j)[i] = find_row(c.draft, r, j)[i] = -INFINITY;
                find_row(c.target, r, j)[4 + j] = find_row(c.draft, r, j)[4 + j] = 0;
                c.tokens[r * M + j] = j ? 3 + j : 0;
            }
        c.limit[0] = 0;
        c.limit[1] = 2;
        c.nodes[2] = 0;
        c.stop = (gumbel_token_lists){.offsets = offsets, .ids = ids};
        verify_call(*state, &c, (gumbel_rule)rule);
        static const int32_t emitted[] = {0, 2, 0, 2, 1};
        static const int32_t finished[] = {GUMBEL_FINISHED_LIMIT, GUMBEL_FINISHED_LIMIT,
                                           GUMBEL_FINISHED_NOT, GUMBEL_FINISHED_STOP,
                                           GUMBEL_FINISHED_STOP};
        for (int32_t r = 0; r < 5; r++) {
            assert_int_equal(c.found->emitted[r], emitted[r]);
            assert_int_equal(c.found->finished[r], finished[r]);
            for (int32_t i = 0; i < M; i++)
                assert_int_equal(c.found->tokens[r * M + i], i < emitted[r] ? 4 + i : -1);
        }
        assert_int_equal(c.found->status[2], GUMBEL_ROW_UNUSED);
        free_call(&c);
    }
}

/* ------------------------------------------------------------------------------- buffers ---- */

/* Copies of wide drafts between guard pages. */
static wide_drafts guard_drafts(guard_set *f, const wide_drafts *req)
{
    const size_t R = (size_t)req->requests, rows = (size_t)req->rows;
    wide_drafts w = *req;
    w.sampling.temperature.data = guard_copy(f, req->temperature, R * sizeof(float), 0);
    w.sampling.seed.data = guard_copy(f, req->seed, R * sizeof(uint64_t), 0);
    w.sampling.position.data = guard_copy(f, req->position, R * sizeof(uint64_t), 0);
    w.sampling.first_sample.data = guard_copy(f, req->first_sample, R * sizeof(uint32_t), 0);
    w.draft_sampling = w.sampling;
    w.draft_sampling.domain = GUMBEL_DOMAIN_DRAFT;
    w.draft_sampling.temperature.data = guard_copy(f, req->draft_temperature, R * sizeof(float), 0);
    w.draft.tokens = guard_copy(f, req->tokens, rows * sizeof(int32_t), 0);
    w.draft.offsets = guard_copy(f, req->offsets, (R + 1) * sizeof(int32_t), 0);
    w.draft.nodes = guard_copy(f, req->nodes, R * sizeof(int32_t), 0);
    w.draft.lse = guard_copy(f, req->lse, rows * sizeof(float), 0);
    w.draft.logprobs = guard_copy(f, req->logprobs, rows * sizeof(float), 0);
    if (w.hidden_size) {
        gumbel_head *heads[] = {&w.target_head, &w.draft_head};
        for (int i = 0; i < 2; i++) {
            heads[i]->hidden = guard_tensor(f, heads[i]->hidden);
            heads[i]->weight = guard_tensor(f, heads[i]->weight);
            heads[i]->bias = guard_tensor(f, heads[i]->bias);
        }
    } else {
        w.target.logits = guard_tensor(f, w.target.logits);
        w.drafted.logits = guard_tensor(f, w.drafted.logits);
    }
    return w;
}

/* Result arrays between guard pages. */
static void guard_results(guard_set *f, verified_arrays *v)
{
    const size_t R = (size_t)v->requests, all = (size_t)v->all;
    v->to.tokens = guard_copy(f, NULL, all * 4, 1);
    v->to.path = guard_copy(f, NULL, all * 4, 1);
    v->to.logprobs = guard_copy(f, NULL, all * 4, 1);
    v->to.scores = guard_copy(f, NULL, all * 4, 1);
    v->to.emitted = guard_copy(f, NULL, R * 4, 1);
    v->to.accepted = guard_copy(f, NULL, R * 4, 1);
    v->to.last_row = guard_copy(f, NULL, R * 4, 1);
    v->to.finished = guard_copy(f, NULL, R * 4, 1);
    v->to.status = guard_copy(f, NULL, R * 4, 1);
    v->to.position = guard_copy(f, NULL, R * 8, 1);
    v->to.histogram = guard_copy(f, NULL, (size_t)v->nodes * 8, 1);
    memset(v->to.histogram, 0, (size_t)v->nodes * 8);
}

static void copy_results(verified_arrays *v)
{
    const size_t R = (size_t)v->requests, all = (size_t)v->all;
    memcpy(v->tokens, v->to.tokens, all * 4);
    memcpy(v->path, v->to.path, all * 4);
    memcpy(v->logprobs, v->to.logprobs, all * 4);
    memcpy(v->scores, v->to.scores, all * 4);
    memcpy(v->emitted, v->to.emitted, R * 4);
    memcpy(v->accepted, v->to.accepted, R * 4);
    memcpy(v->last_row, v->to.last_row, R * 4);
    memcpy(v->finished, v->to.finished, R * 4);
    memcpy(v->status, v->to.status, R * 4);
    memcpy(v->position, v->to.position, R * 8);
    memcpy(v->histogram, v->to.histogram, (size_t)v->nodes * 8);
}

static void verify_guarded(gumbel_device *device, guard_set *f, const wide_drafts *req,
                           verified_arrays *into)
{
    wide_drafts w = guard_drafts(f, req);
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    const gumbel_head *head = w.hidden_size ? &w.target_head : NULL;
    const gumbel_logits *logits = head ? NULL : &w.target;
    w.draft.sampling = &w.draft_sampling;
    w.draft.head = head ? &w.draft_head : NULL;
    w.draft.logits = head ? NULL : &w.drafted;
    guard_results(f, into);
    assert_int_equal(gumbel_verify_workspace_size(device, head, logits, &w.sampling, &w.draft,
                                                  &into->to, &bytes, &error),
                     GUMBEL_OK);
    bytes = (bytes + 63) / 64 * 64; /* aligned and adjacent to the guard page */
    void *workspace = guard_copy(f, NULL, bytes, 1);
    memset(workspace, 0x7b, bytes);
    gumbel_status status = head ? gumbel_verify(device, NULL, head, &w.sampling, &w.draft,
                                                &into->to, workspace, bytes, &error)
                                : gumbel_verify_logits(device, NULL, logits, &w.sampling, &w.draft,
                                                       &into->to, workspace, bytes, &error);
    assert_int_equal(status, GUMBEL_OK);
    copy_results(into);
}

/* A verification accesses only its buffers, writes no input, and is repeatable. */
static void verification_touches_only_its_buffers(void **state)
{
    for (int index = 0; index < 40; index++) {
        wide_drafts *req = index % 8 == 7 ? wide_make_crowded(index)
                                          : wide_make(index, TEST_SANITIZED ? 200 : 900);
        verified_arrays *wanted = verified_make(req->requests, req->max_nodes, req->requests);
        wide_supply_logprobs(req, *state);
        assert_int_equal(wide_verify(*state, req, wanted), GUMBEL_OK);
        for (int turn = 0; turn < 4; turn++) {
            guard_set f = {.at_front = turn % 2};
            verified_arrays *found = verified_make(req->requests, req->max_nodes, req->requests);
            verify_guarded(*state, &f, req, found);
            assert_true(verified_same(wanted, found, 0));
            free_guard_set(&f);
            verified_free(found);
        }
        verified_free(wanted);
        wide_free(req);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_rows_match_known_results),
        cmocka_unit_test(certain_results_ignore_the_coin),
        cmocka_unit_test(block_cycles_use_independent_noise),
        cmocka_unit_test(limits_and_stop_tokens_end_requests),
        cmocka_unit_test(verification_touches_only_its_buffers),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
