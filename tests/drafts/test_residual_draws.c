/* SPDX-License-Identifier: Apache-2.0
 *
 * REJECTION and BLOCK: the token after a rejection depends neither on the number of listed best
 * scores nor on the entry point (logits or head). Also drafts by the target itself, rows without a
 * valid draw, and invalid arguments.
 */
#include "draft_cycles.h"
#include "fixtures.h"
#include "inputs.h"
#include "outcome.h"
#include "wide_drafts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { R = 40, M = 4, N = R * M, V = 5000, D = 16 };

/* Verifications of synthetic rows with random drafts. */
typedef struct residual_case {
    float hidden[N * D], weight[V * D], draft_hidden[N * D], draft_weight[V * D];
    float target[(size_t)N * V], draft[(size_t)N * V];
    uint64_t seed[R], position[R];
    float temperature[R];
    int32_t drafted[N];
    int32_t best_ids[N * GUMBEL_BEST_MAX];
    float best_scores[N * GUMBEL_BEST_MAX];
    int32_t row_tokens[N], tokens[N], emitted[R], accepted[R], status[R];
    float logprobs[N];
    gumbel_truncation cut;
    int32_t top_k[R];
    float top_p[R];
} residual_case;

static void multiply_head(const float *hidden, const float *weight, float *logits)
{
    for (int64_t b = 0; b < N; b++)
        for (int64_t i = 0; i < V; i++) {
            float sum = 0;
            for (int64_t k = 0; k < D; k++)
                sum += hidden[b * D + k] * weight[i * D + k];
            logits[b * V + i] = sum;
        }
}

/* Multiples of 1/8, whose products and sums are exact. */
static void fill_eighths(float *numbers, int64_t count, uint64_t *random)
{
    for (int64_t i = 0; i < count; i++)
        numbers[i] = 0.125f * ((float)random_below(random, 17) - 8);
}

/* With `one_token_differs`, the models differ in one rare token of each row. */
static residual_case *make_residual_case(int one_token_differs, uint64_t seed)
{
    residual_case *s = make_zeroed(1, sizeof *s);
    uint64_t random = seed;
    fill_eighths(s->weight, V * D, &random);
    fill_eighths(s->hidden, N * D, &random);
    memcpy(s->draft_weight, s->weight, sizeof s->weight);
    memcpy(s->draft_hidden, s->hidden, sizeof s->hidden);
    if (one_token_differs) {
        s->draft_weight[7 * D] += 4;
    } else {
        fill_eighths(s->draft_hidden, N * D / 8, &random);
        for (int64_t i = 0; i < V * D; i += 3)
            s->draft_weight[i] += 0.125f;
    }
    multiply_head(s->hidden, s->weight, s->target);
    multiply_head(s->draft_hidden, s->draft_weight, s->draft);
    for (int r = 0; r < R; r++) {
        s->seed[r] = random_bits(&random);
        s->position[r] = random_below(&random, 1000);
        s->temperature[r] = r % 9 == 8 ? 0 : 0.5f + 0.1f * (float)(r % 6);
        s->top_k[r] = r % 3 ? 40 : 0;
        s->top_p[r] = r % 2 ? 0.9f : 1;
    }
    s->cut = (gumbel_truncation){
        .struct_size = sizeof s->cut, .top_k = {s->top_k, 0}, .top_p = {s->top_p, 0}};
    return s;
}

static gumbel_sampling sampling_of(const residual_case *s, int cuts, uint32_t domain)
{
    return (gumbel_sampling){.struct_size = sizeof(gumbel_sampling),
                             .temperature = {s->temperature, 0},
                             .seed = {s->seed, 0},
                             .position = {s->position, 0},
                             .truncation = cuts ? &s->cut : NULL,
                             .domain = domain};
}

static gumbel_head head_of(const float *hidden, const float *weight)
{
    return (gumbel_head){.struct_size = sizeof(gumbel_head),
                         .hidden = tensor_of(hidden, GUMBEL_FLOAT32, N, D, 0),
                         .weight = tensor_of(weight, GUMBEL_FLOAT32, V, D, 0)};
}

static gumbel_logits rows_of(const float *rows)
{
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = tensor_of(rows, GUMBEL_FLOAT32, N, V, 0)};
}

/* Drafts each node from the row of its predecessor. */
static void make_drafts(gumbel_device *device, residual_case *s, int cuts)
{
    static uint64_t seed[N], position[N];
    static float temperature[N], top_p[N];
    static int32_t top_k[N], drawn[N];
    gumbel_logits logits = rows_of(s->draft);
    gumbel_truncation cut = {.struct_size = sizeof cut, .top_k = {top_k, 0}, .top_p = {top_p, 0}};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {temperature, 0},
                           .seed = {seed, 0},
                           .position = {position, 0},
                           .truncation = cuts ? &cut : NULL,
                           .domain = GUMBEL_DOMAIN_DRAFT};
    outcome *generated = outcome_make(N, 1);
    for (int b = 0; b < N; b++) {
        seed[b] = s->seed[b / M];
        position[b] = s->position[b / M] + (uint64_t)(b % M);
        temperature[b] = s->temperature[b / M];
        top_k[b] = s->top_k[b / M];
        top_p[b] = s->top_p[b / M];
    }
    assert_int_equal(draw_logits(device, &logits, &how, generated), GUMBEL_OK);
    memcpy(drawn, generated->tokens, sizeof drawn);
    for (int b = 0; b < N; b++)
        s->drafted[b] = b % M ? drawn[b - 1] : 0;
    outcome_free(generated);
}

/* Verifies with `num_best` best scores, from heads or logits; 0: with arrays for them, which are
 * not written; -1: without outputs of rows. */
static void verify_case(gumbel_device *device, residual_case *s, gumbel_rule rule, int cuts,
                        int32_t num_best, int by_head)
{
    gumbel_head head = head_of(s->hidden, s->weight);
    gumbel_head draft_head = head_of(s->draft_hidden, s->draft_weight);
    gumbel_logits logits = rows_of(s->target), draft_logits = rows_of(s->draft);
    gumbel_sampling how = sampling_of(s, cuts, GUMBEL_DOMAIN_TARGET);
    gumbel_sampling drafted = sampling_of(s, cuts, GUMBEL_DOMAIN_DRAFT);
    gumbel_output rows = {.struct_size = sizeof rows,
                          .tokens = s->row_tokens,
                          .best_ids = s->best_ids,
                          .best_scores = s->best_scores,
                          .num_best = num_best >= 0 ? num_best : 0};
    gumbel_draft d = {.struct_size = sizeof d,
                      .requests = R,
                      .max_nodes = M,
                      .rule = rule,
                      .tokens = s->drafted,
                      .head = by_head ? &draft_head : NULL,
                      .logits = by_head ? NULL : &draft_logits,
                      .sampling = &drafted};
    gumbel_verified v = {.struct_size = sizeof v,
                         .tokens = s->tokens,
                         .emitted = s->emitted,
                         .accepted = s->accepted,
                         .status = s->status,
                         .logprobs = s->logprobs,
                         .rows = num_best >= 0 ? &rows : NULL};
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    gumbel_status status = gumbel_verify_workspace_size(
        device, by_head ? &head : NULL, by_head ? NULL : &logits, &how, &d, &v, &bytes, &error);
    assert_int_equal(status, GUMBEL_OK);
    void *workspace = aligned_alloc(64, bytes + 64);
    memset(workspace, 0xA7, bytes);
    status = by_head ? gumbel_verify(device, NULL, &head, &how, &d, &v, workspace, bytes, &error)
                     : gumbel_verify_logits(device, NULL, &logits, &how, &d, &v, workspace, bytes,
                                            &error);
    if (status != GUMBEL_OK)
        print_message("%s: %s\n", error.field, error.message);
    assert_int_equal(status, GUMBEL_OK);
    free(workspace);
}

/* The tokens depend neither on the number of listed scores nor on head or logits. */
static void tokens_do_not_depend_on_the_list_length(void **state)
{
    for (int i = 0; i < 4; i++) {
        int one_token_differs = i % 2, cuts = i / 2;
        residual_case *s = make_residual_case(one_token_differs, 11 + (uint64_t)i);
        int32_t tokens[N], rejected = 0;
        float logprobs[N];
        make_drafts(*state, s, cuts);
        verify_case(*state, s, GUMBEL_RULE_REJECTION, cuts, -1, 0);
        memcpy(tokens, s->tokens, sizeof tokens);
        memcpy(logprobs, s->logprobs, sizeof logprobs);
        for (int r = 0; r < R; r++) {
            assert_int_equal(s->status[r], GUMBEL_ROW_OK);
            assert_true(s->emitted[r] == s->accepted[r] + 1);
            rejected += s->emitted[r] < M;
        }
        memset(s->best_ids, 0x5A, sizeof s->best_ids);
        memset(s->best_scores, 0x5A, sizeof s->best_scores);
        verify_case(*state, s, GUMBEL_RULE_REJECTION, cuts, 0, 0);
        assert_memory_equal(tokens, s->tokens, sizeof tokens);
        for (size_t k = 0; k < sizeof s->best_ids / sizeof *s->best_ids; k++)
            assert_int_equal(s->best_ids[k], 0x5A5A5A5A);
        assert_memory_equal(s->best_scores, s->best_ids, sizeof s->best_scores);
        for (int32_t best = 1; best <= GUMBEL_BEST_MAX; best = best < 3 ? best + 1 : 16 * best) {
            verify_case(*state, s, GUMBEL_RULE_REJECTION, cuts, best, 0);
            assert_memory_equal(tokens, s->tokens, sizeof tokens);
            assert_memory_equal(logprobs, s->logprobs, sizeof logprobs);
        }
        verify_case(*state, s, GUMBEL_RULE_REJECTION, cuts, 1, 1);
        assert_memory_equal(tokens, s->tokens, sizeof tokens);
        verify_case(*state, s, GUMBEL_RULE_REJECTION, cuts, -1, 1);
        assert_memory_equal(tokens, s->tokens, sizeof tokens);
        print_message("%d of %d requests had a draft rejected\n", (int)rejected, R);
        assert_true(one_token_differs || rejected > 5);
        free(s);
    }
}

/* The token of the residual draw has every rank in the list, or is not listed. */
static void residual_token_at_every_rank_of_the_list(void **state)
{
    enum { PROBLEMS = 40, ALL = PROBLEMS * 16 };
    int64_t among_best = 0;
    for (int index = 0; index < PROBLEMS; index++) {
        static int32_t row_tokens[N], best_ids[N * GUMBEL_BEST_MAX];
        static float best_scores[N * GUMBEL_BEST_MAX];
        wide_drafts *req = wide_make_crowded(index);
        verified_arrays *found[3];
        gumbel_output rows = {.struct_size = sizeof rows,
                              .tokens = row_tokens,
                              .best_ids = best_ids,
                              .best_scores = best_scores};
        assert_true(req->rows <= N);
        for (int i = 0; i < 3; i++) { /* one score never determines the residual draw */
            rows.num_best = (int32_t[]){1, 5, GUMBEL_BEST_MAX}[i];
            found[i] = verified_make(req->requests, req->max_nodes, req->requests);
            found[i]->to.rows = &rows;
            assert_int_equal(wide_verify(*state, req, found[i]), GUMBEL_OK);
        }
        for (int32_t r = 0; r < req->requests; r++) {
            assert_int_equal(found[0]->emitted[r], 1);
            for (int i = 1; i < 3; i++)
                assert_int_equal(found[i]->tokens[2 * r], found[0]->tokens[2 * r]);
            for (int k = 0; k < GUMBEL_BEST_MAX; k++)
                among_best += found[0]->tokens[2 * r] == best_ids[2 * r * GUMBEL_BEST_MAX + k];
        }
        for (int i = 0; i < 3; i++)
            verified_free(found[i]);
        wide_free(req);
    }
    print_message("%d of %d residual tokens are among the %d best\n", (int)among_best, ALL,
                  GUMBEL_BEST_MAX);
    assert_in_range(among_best, ALL * 5 / 8, ALL - PROBLEMS / 8);
}

/* With p = q all drafts are accepted; a greedy row accepts its own token. */
static void drafts_of_the_target_are_accepted(void **state)
{
    for (int block = 0; block < 2; block++) {
        residual_case *s = make_residual_case(0, 77);
        memcpy(s->draft, s->target, sizeof s->draft);
        make_drafts(*state, s, 1);
        verify_case(*state, s, block ? GUMBEL_RULE_BLOCK : GUMBEL_RULE_REJECTION, 1, -1, 0);
        for (int r = 0; r < R; r++) {
            assert_int_equal(s->accepted[r], M - 1);
            for (int j = 0; j + 1 < M; j++)
                assert_int_equal(s->tokens[r * M + j], s->drafted[r * M + j + 1]);
            for (int j = 0; j < M; j++)
                assert_true(s->logprobs[r * M + j] <= 0);
        }
        free(s);
    }
}

/* The draft's call has the target's parameters, in requests of all kinds: p equals q bit for bit,
 * so each draft that equals the text is accepted. */
static void drafts_with_the_targets_parameters_are_accepted(void **state)
{
    int64_t accepted = 0;
    for (int index = 0; index < (TEST_SANITIZED ? 30 : 300); index++) {
        const texts_plan plan = texts_plan_at_random(index);
        texts *of = texts_make(&plan, *state);
        int32_t progress[8] = {0};
        uint64_t random = (uint64_t)index;
        cycle *req = cycle_make(of, progress, &random);
        verified_arrays *found = verified_make(plan.requests, req->max_nodes, plan.requests + 3);
        gumbel_sampling drafted = req->sampling;
        drafted.slots = (gumbel_slots){NULL, 0};
        drafted.live_rows = NULL;
        drafted.domain = GUMBEL_DOMAIN_DRAFT;
        req->draft.parents = NULL;
        req->draft.rule = GUMBEL_RULE_REJECTION;
        req->draft.head = plan.hidden_size > 0 ? &req->head : NULL;
        req->draft.logits = plan.hidden_size > 0 ? NULL : &req->logits;
        req->draft.sampling = &drafted;
        found->to.rows = NULL;
        assert_int_equal(cycle_verify(*state, req, found), GUMBEL_OK);
        for (int32_t r = 0; r < req->live_rows; r++)
            for (int32_t j = 1; j < req->nodes[r] && j <= found->emitted[r]; j++) {
                int32_t drafted_token = req->tokens[req->offsets[r] + j];
                if (drafted_token != of->tokens[r * plan.length + j - 1])
                    break;
                assert_int_equal(found->tokens[r * req->max_nodes + j - 1], drafted_token);
                accepted++;
            }
        verified_free(found);
        cycle_free(req);
        texts_free(of);
    }
    assert_true(accepted > (TEST_SANITIZED ? 50 : 100));
}

/* If the draft's row is NaN, q is unknown, and the target's own draw is emitted. A NaN row of the
 * target ends the request. */
static void faulty_rows_of_target_and_draft(void **state)
{
    residual_case *s = make_residual_case(0, 5);
    make_drafts(*state, s, 0);
    for (int r = 0; r < R; r++) {
        s->draft[(size_t)(r * M + r % 3) * V + 11] = NAN;
        if (r % 5 == 4)
            s->target[(size_t)(r * M + 2) * V + 3] = NAN;
    }
    for (int block = 0; block < 2; block++) {
        verify_case(*state, s, block ? GUMBEL_RULE_BLOCK : GUMBEL_RULE_REJECTION, 0, -1, 0);
        for (int r = 0; r < R; r++) {
            assert_true(s->status[r] == GUMBEL_ROW_OK || r % 5 == 4);
            assert_true(s->emitted[r] >= 1 && s->emitted[r] <= (r % 5 == 4 ? 2 : M));
            for (int j = 0; j < M; j++)
                assert_true(j < s->emitted[r] ? s->tokens[r * M + j] >= 0
                                              : s->tokens[r * M + j] == -1);
        }
    }
    free(s);
}

/* ------------------------------------------------------------------------------ invalid arguments
 * ---- */

static void invalid_draft_calls_return_an_error_by_name(void **state)
{
    static _Alignas(64) char workspace[1 << 20];
    static const float rows[4 * 8] = {0}, wide[4 * 9] = {0}, weight[8 * 2] = {0};
    static const int32_t drafted[4] = {0, 1, 0, 1}, parents[4] = {0, 0, 0, 0};
    static const char *const fields[] = {
        NULL,
        "draft.rule",
        "draft.parents",
        "draft.logits",
        "draft.logits",
        "draft.logits",
        "draft.sampling.domain",
        "draft.sampling.domain",
        "draft.head",
        "draft.rule",
        "draft.sampling.temperature[0]",
        "draft.sampling.domain",
        "sampling.domain",
    };
    for (int wrong = 0; wrong < 13; wrong++) {
        const float cold = -1;
        int32_t tokens[4], emitted[2];
        gumbel_logits logits = {.struct_size = sizeof logits,
                                .logits = tensor_of(rows, GUMBEL_FLOAT32, 4, 8, 0)};
        gumbel_logits draft = logits;
        gumbel_head head = {.struct_size = sizeof head,
                            .hidden = tensor_of(rows, GUMBEL_FLOAT32, 4, 2, 0),
                            .weight = tensor_of(weight, GUMBEL_FLOAT32, 8, 2, 0)};
        gumbel_sampling drafts = {.struct_size = sizeof drafts, .domain = GUMBEL_DOMAIN_DRAFT};
        gumbel_draft d = {.struct_size = sizeof d,
                          .requests = 2,
                          .max_nodes = 2,
                          .rule = GUMBEL_RULE_REJECTION,
                          .tokens = drafted,
                          .logits = &draft,
                          .sampling = &drafts};
        gumbel_verified v = {.struct_size = sizeof v, .tokens = tokens, .emitted = emitted};
        gumbel_error error = {"", ""};
        if (wrong == 1)
            d.rule = (gumbel_rule)3;
        if (wrong == 2)
            d.parents = parents;
        if (wrong == 3)
            d.head = &head;
        if (wrong == 4)
            draft.logits = tensor_of(wide, GUMBEL_FLOAT32, 4, 9, 0);
        if (wrong == 5)
            draft.logits.rows = 3;
        if (wrong == 6)
            drafts.domain = GUMBEL_DOMAIN_TARGET;
        if (wrong == 7)
            drafts.domain = GUMBEL_DOMAIN_ACCEPT;
        if (wrong == 8) {
            d.logits = NULL;
            d.head = &head;
            head.hidden.rows = 3;
        }
        if (wrong == 9) {
            d.logits = NULL;
            d.head = &head;
            d.rule = GUMBEL_RULE_BLOCK;
        }
        if (wrong == 10)
            drafts.temperature = (gumbel_row_f32){&cold, GUMBEL_SAME};
        gumbel_sampling how = {.struct_size = sizeof how};
        if (wrong == 11)
            drafts.domain = GUMBEL_DOMAIN_RESIDUAL | 1 << 8;
        if (wrong == 12)
            how.domain = GUMBEL_DOMAIN_ACCEPT;
        gumbel_status status = gumbel_verify_logits(*state, NULL, &logits, &how, &d, &v, workspace,
                                                    sizeof workspace, &error);
        assert_int_equal(status == GUMBEL_OK, fields[wrong] == NULL);
        assert_string_equal(error.field, fields[wrong] ? fields[wrong] : "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_do_not_depend_on_the_list_length),
        cmocka_unit_test(residual_token_at_every_rank_of_the_list),
        cmocka_unit_test(drafts_of_the_target_are_accepted),
        cmocka_unit_test(drafts_with_the_targets_parameters_are_accepted),
        cmocka_unit_test(faulty_rows_of_target_and_draft),
        cmocka_unit_test(invalid_draft_calls_return_an_error_by_name),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
