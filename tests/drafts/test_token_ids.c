/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws from a head over a subset of the vocabulary, by a table of token ids: every output against
 * a draw by rows with the noise of the table's tokens, computed one by one; tokens and scores
 * against plain loops; ascending tables against draws from the whole vocabulary, whose other logits
 * are -inf; drafts drawn by a table, which their target accepts; noise prepared by a table.
 */
#include "token_tables.h"
#include "test_scale.h"
#include "slotted.h"

#include <gumbel/drafts.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

/* A random request, with a table of `vocab` possible ids, which the caller frees. */
static request *make_request(gumbel_device *device, int index, table_kind kind, int64_t *vocab,
                             int32_t **ids)
{
    uint64_t random = 90 + (uint64_t)index;
    request_plan plan = request_plan_at_random(index, index % 3 == 0);
    table_adapt_plan(&plan);
    plan.programs = index % 7 == 0 ? 2 : 0;
    plan.kept_capacity = index % 2 ? 40 : 0;
    plan.entropy = index % 5 == 0;
    *vocab = plan.vocab + random_below(&random, 4000);
    *ids = table_make(kind, plan.vocab, *vocab, &random);
    request *req = request_make(&plan, device);
    req->programs.xtc_keep = (gumbel_token_lists){0};
    req->sampling.token_ids = *ids;
    return req;
}

static gumbel_status draw_any(gumbel_device *device, const request *req, outcome *into)
{
    return req->plan.hidden_size ? request_draw_fused(device, req, into)
                                 : request_draw(device, req, into);
}

/* Rows that count: those before the padding. */
static int64_t end_of(const request *req)
{
    const int64_t end = req->plan.vocab_size, vocab = req->plan.vocab;
    return end > 0 && end < vocab ? end : vocab;
}

/* ------------------------------------------------------------------------- draws by rows ---- */

/* Compares the tokens and scores of row b with the largest z + g, or z of a greedy row. */
static void check_scores(const request *req, const outcome *drawn, const float *z,
                         const float *noise, int64_t b)
{
    const int64_t vocab = req->plan.vocab;
    const int greedy = row_f32(&req->sampling.temperature, &req->sampling, b, 1.0f) == 0.0f;
    for (int32_t j = 0; j < drawn->samples; j++) {
        const int64_t draw = b * drawn->samples + j;
        int64_t best = -1;
        float best_score = -INFINITY;
        for (int64_t i = 0; i < vocab; i++) {
            const float score = z[i] + (greedy ? 0.0f : noise[draw * vocab + i]);
            if (score > best_score) {
                best_score = score;
                best = i;
            }
        }
        assert_int_equal(drawn->tokens[draw], req->sampling.token_ids[best]);
        assert_true(drawn->scores[draw] == best_score);
    }
}

static void outputs_are_those_of_rows_with_the_noise_of_tokens(void **state)
{
    const int count = scale_count(260, 12);
    for (int i = 0; i < count; i++) {
        int64_t vocab;
        int32_t *ids;
        request *req = make_request(*state, i, (table_kind)(i % TABLE_KINDS), &vocab, &ids);
        request rows = *req;
        const int64_t batch = req->plan.batch;
        float *noise = table_noise(&req->sampling, batch, req->plan.vocab);
        float *z = make_zeroed((size_t)(batch * req->plan.vocab), sizeof *z);
        outcome *expected = request_outcome(req), *found = request_outcome(req);
        rows.sampling.noise = noise;
        rows.sampling.token_ids = NULL;
        assert_int_equal(draw_any(*state, &rows, expected), GUMBEL_OK);
        table_map_outcome(ids, req->plan.vocab, expected);
        assert_int_equal(draw_any(*state, req, found), GUMBEL_OK);
        assert_true(outcome_same(expected, 0, found, OUTCOME_ALL, request_describe(&req->plan)));
        rows.sampling.noise = NULL;
        assert_int_equal(request_process(*state, &rows.logits, &rows.sampling, z), GUMBEL_OK);
        for (int64_t b = 0; b < batch; b++)
            if (found->status[b] == GUMBEL_ROW_OK)
                check_scores(req, found, z + b * req->plan.vocab, noise, b);
        outcome_free(expected);
        outcome_free(found);
        free(noise);
        free(z);
        free(ids);
        request_free(req);
    }
}

static void slots_and_live_rows_change_no_token(void **state)
{
    uint64_t random = 3;
    for (int i = 0; i < scale_count(40, 12); i++) {
        int64_t vocab;
        int32_t *ids;
        request *req = make_request(*state, i, (table_kind)(i % TABLE_KINDS), &vocab, &ids);
        const int64_t batch = req->plan.batch;
        slotted *by_slot = slotted_make(req, &random);
        outcome *expected = request_outcome(req), *found = request_outcome(req);
        assert_int_equal(draw_any(*state, req, expected), GUMBEL_OK);
        by_slot->req.sampling.token_ids = ids;
        const int32_t live = (int32_t)random_below(&random, (uint32_t)batch + 1);
        by_slot->req.sampling.live_rows = &live;
        assert_int_equal(draw_any(*state, &by_slot->req, found), GUMBEL_OK);
        for (int64_t b = 0; b < batch; b++) {
            const int32_t drawn = expected->tokens[b * expected->samples];
            assert_int_equal(found->tokens[b * found->samples], b < live ? drawn : -1);
            assert_int_equal(found->status[b], b < live ? expected->status[b] : GUMBEL_ROW_UNUSED);
        }
        outcome_free(expected);
        outcome_free(found);
        slotted_free(by_slot);
        free(ids);
        request_free(req);
    }
}

static void best_scores_list_ids(void **state)
{
    enum { V = 300, BEST = 16 };
    uint64_t random = 8;
    int32_t *ids = table_make(TABLE_UNSORTED, V, 5000, &random);
    float logits[V], best[BEST];
    int32_t token, listed[BEST];
    for (int i = 0; i < V; i++)
        logits[i] = random_normal(&random);
    const uint64_t seed = 5;
    const gumbel_logits in = {.struct_size = sizeof in,
                              .logits = tensor_of(logits, GUMBEL_FLOAT32, 1, V, 0)};
    const gumbel_sampling how = {
        .struct_size = sizeof how, .seed = {&seed, GUMBEL_SAME}, .token_ids = ids};
    const gumbel_output out = {.struct_size = sizeof out,
                               .tokens = &token,
                               .best_ids = listed,
                               .best_scores = best,
                               .num_best = BEST};
    size_t bytes;
    void *workspace = call_workspace(*state, NULL, &in, &how, &out, &bytes);
    assert_int_equal(gumbel_sample_logits(*state, NULL, &in, &how, &out, workspace, bytes, NULL),
                     GUMBEL_OK);
    float *noise = table_noise(&how, 1, V);
    for (int k = 0; k < BEST; k++) {
        int larger = 0, at = -1;
        for (int i = 0; i < V; i++) {
            larger += logits[i] + noise[i] > best[k];
            at = ids[i] == listed[k] ? i : at;
        }
        assert_int_equal(larger, k);
        assert_true(at >= 0 && logits[at] + noise[at] == best[k]);
    }
    assert_int_equal(token, listed[0]);
    free(noise);
    free(workspace);
    free(ids);
}

/* ----------------------------------------------------------------- the whole vocabulary ---- */

/* The promised error of a log-normaliser, of two calls. */
static int is_near(float a, float b)
{
    return (isnan(a) && isnan(b)) || a == b || fabsf(a - b) <= 0x1p-18f * fmaxf(1.0f, fabsf(a));
}

static int are_near(const float *a, const float *b, int64_t count)
{
    for (int64_t i = 0; i < count && a; i++)
        if (!is_near(a[i], b[i]))
            return 0;
    return 1;
}

static void ascending_tables_draw_as_the_whole_vocabulary(void **state)
{
    const int count = scale_count(200, 12);
    for (int i = 0; i < count; i++) {
        int64_t vocab;
        int32_t *ids;
        request *req = make_request(*state, i, TABLE_ASCENDING, &vocab, &ids);
        if (req->plan.hidden_size || req->logits.logits.dtype != GUMBEL_FLOAT32 ||
            req->plan.programs) {
            free(ids);
            request_free(req);
            continue;
        }
        const int64_t batch = req->plan.batch;
        req->logits.scale = fabsf(req->logits.scale);
        request whole = *req;
        float *scattered = table_scatter(&req->logits.logits, ids, end_of(req), vocab);
        whole.logits.logits = tensor_of(scattered, GUMBEL_FLOAT32, batch, vocab, 0);
        whole.logits.vocab_size = 0;
        whole.sampling.token_ids = NULL;
        outcome *expected = request_outcome(req), *found = request_outcome(req);
        expected->output.entropy = found->output.entropy = NULL; /* their sums have other orders */
        assert_int_equal(request_draw(*state, &whole, expected), GUMBEL_OK);
        assert_int_equal(request_draw(*state, req, found), GUMBEL_OK);
        assert_true(are_near(expected->lse, found->lse, batch));
        assert_true(are_near(expected->logprobs, found->logprobs, batch * found->samples));
        assert_true(
            are_near(expected->top_logprobs, found->top_logprobs, batch * found->output.num_top));
        if (found->kept_logprobs)
            assert_true(are_near(expected->kept_logprobs, found->kept_logprobs,
                                 batch * found->output.kept_capacity));
        memcpy(found->top_logprobs, expected->top_logprobs,
               (size_t)(batch * found->output.num_top) * sizeof(float));
        if (found->kept_logprobs)
            memcpy(found->kept_logprobs, expected->kept_logprobs,
                   (size_t)(batch * found->output.kept_capacity) * sizeof(float));
        assert_true(outcome_same(expected, 0, found,
                                 OUTCOME_TOKENS | OUTCOME_SCORES | OUTCOME_FURTHER,
                                 request_describe(&req->plan)));
        outcome_free(expected);
        outcome_free(found);
        free(scattered);
        free(ids);
        request_free(req);
    }
}

/* ------------------------------------------------------------------------------ drafts ---- */

/* A target whose logits are the draft's, on the subset, accepts every draft. Without the table, it
 * would accept hardly any: the noise would be that of other tokens. */
static void targets_accept_drafts_of_equal_logits(void **state)
{
    enum { R = 24, M = 6, ROWS = R * M, VOCAB = 3000, COUNT = 500 };
    uint64_t random = 77, seed[R], position[R];
    static float logits[ROWS * COUNT];
    int32_t tokens[ROWS], emitted[R], accepted[R], found[ROWS], drawn[R];
    for (table_kind kind = TABLE_ASCENDING; kind <= TABLE_UNSORTED; kind++) {
        int32_t *ids = table_make(kind, COUNT, VOCAB, &random);
        for (int i = 0; i < ROWS * COUNT; i++)
            logits[i] = 2 * random_normal(&random);
        for (int r = 0; r < R; r++) {
            seed[r] = random_bits(&random);
            position[r] = random_bits(&random);
            tokens[r * M] = 0;
        }
        gumbel_sampling how = {.struct_size = sizeof how, .seed = {seed, 0}};
        for (int j = 0; j + 1 < M; j++) { /* node j + 1 of each request, from its row j */
            uint64_t at[R];
            for (int r = 0; r < R; r++)
                at[r] = position[r] + (uint64_t)j;
            const gumbel_logits in = {
                .struct_size = sizeof in,
                .logits = tensor_of(logits + j * COUNT, GUMBEL_FLOAT32, R, COUNT, M * COUNT)};
            const gumbel_output out = {.struct_size = sizeof out, .tokens = drawn};
            size_t bytes;
            how.position = (gumbel_row_u64){at, 0};
            how.token_ids = ids;
            void *workspace = call_workspace(*state, NULL, &in, &how, &out, &bytes);
            assert_int_equal(
                gumbel_sample_logits(*state, NULL, &in, &how, &out, workspace, bytes, NULL),
                GUMBEL_OK);
            free(workspace);
            for (int r = 0; r < R; r++)
                tokens[r * M + j + 1] = drawn[r];
        }
        const gumbel_tensor rows = tensor_of(logits, GUMBEL_FLOAT32, ROWS, COUNT, 0);
        float *whole = table_scatter(&rows, ids, COUNT, VOCAB);
        const gumbel_logits target = {.struct_size = sizeof target,
                                      .logits = tensor_of(whole, GUMBEL_FLOAT32, ROWS, VOCAB, 0)};
        const gumbel_draft draft = {
            .struct_size = sizeof draft, .tokens = tokens, .requests = R, .max_nodes = M};
        const gumbel_verified to = {
            .struct_size = sizeof to, .tokens = found, .emitted = emitted, .accepted = accepted};
        size_t bytes;
        how.position = (gumbel_row_u64){position, 0};
        how.token_ids = NULL;
        assert_int_equal(
            gumbel_verify_workspace_size(*state, NULL, &target, &how, &draft, &to, &bytes, NULL),
            GUMBEL_OK);
        void *workspace = poisoned_workspace(bytes);
        assert_int_equal(
            gumbel_verify_logits(*state, NULL, &target, &how, &draft, &to, workspace, bytes, NULL),
            GUMBEL_OK);
        for (int r = 0; r < R; r++) {
            assert_int_equal(accepted[r], M - 1);
            assert_int_equal(emitted[r], M);
            assert_memory_equal(found + r * M, tokens + r * M + 1, (M - 1) * sizeof *found);
        }
        free(workspace);
        free(whole);
        free(ids);
    }
}

/* ----------------------------------------------------------------------- prepared noise ---- */

static void prepared_noise_is_that_of_the_ids(void **state)
{
    enum { B = 3, S = 2, V = 2100, GAP = 5 };
    static float found[B * S * (V + GAP)];
    uint64_t random = 4;
    for (int i = 0; i < 2 * TABLE_KINDS; i++) {
        int32_t *ids = table_make((table_kind)(i % TABLE_KINDS), V, 2 * V, &random);
        const uint64_t seed = random_bits(&random), position = random_bits(&random);
        const gumbel_sampling how = {.struct_size = sizeof how,
                                     .seed = {&seed, GUMBEL_SAME},
                                     .position = {&position, GUMBEL_SAME},
                                     .num_samples = S,
                                     .domain = 9,
                                     .token_ids = ids};
        float *expected = table_noise(&how, B, V);
        for (int64_t at = 0; at < B * S * (V + GAP); at++)
            found[at] = -7.0f;
        assert_int_equal(gumbel_prepare_noise(*state, NULL, &how, B, 0, V, found, V + GAP, NULL),
                         GUMBEL_OK);
        for (int64_t draw = 0; draw < B * S; draw++) {
            const float *row = found + draw * (V + GAP);
            assert_memory_equal(row, expected + draw * V, V * sizeof *row);
            assert_true(row[V] == -7.0f && row[V + GAP - 1] == -7.0f);
        }
        free(expected);
        free(ids);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_those_of_rows_with_the_noise_of_tokens),
        cmocka_unit_test(slots_and_live_rows_change_no_token),
        cmocka_unit_test(best_scores_list_ids),
        cmocka_unit_test(ascending_tables_draw_as_the_whole_vocabulary),
        cmocka_unit_test(targets_accept_drafts_of_equal_logits),
        cmocka_unit_test(prepared_noise_is_that_of_the_ids),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
