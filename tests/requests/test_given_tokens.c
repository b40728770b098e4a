/* SPDX-License-Identifier: Apache-2.0
 *
 * Given tokens have the log-probabilities and ranks of a draw. Lists of allowed tokens are
 * equivalent to a mask.
 */
#include "fixtures.h"
#include "requests.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

static gumbel_status draw_either(gumbel_device *device, const request *req, outcome *into)
{
    return req->product ? request_draw_fused(device, req, into) : request_draw(device, req, into);
}

/* Tokens of a draw, passed as given tokens, have the outputs of the draw, except that scores
 * contain no noise. */
static void given_drawn_tokens_have_the_draws_outputs(void **state)
{
    for (int i = 0; i < 120; i++) {
        request_plan plan = request_plan_at_random(i, i % 3 == 0);
        plan.given_noise = 0;
        request *req = request_make(&plan, *state), scored = *req;
        outcome *drawn = request_outcome(req), *found = request_outcome(req);
        assert_int_equal(draw_either(*state, req, drawn), GUMBEL_OK);
        scored.sampling.given = (gumbel_row_i32){drawn->tokens, 0};
        assert_int_equal(draw_either(*state, &scored, found), GUMBEL_OK);
        assert_true(outcome_same(drawn, 0, found, OUTCOME_TOKENS | OUTCOME_MASS | OUTCOME_FURTHER,
                                 request_describe(&plan)));
        outcome_free(drawn);
        outcome_free(found);
        request_free(req);
    }
}

/* The expected outputs of token `id` of row b, from z before and after truncation. */
static void check_token(const request *req, const outcome *found, const float *all,
                        const float *kept, int64_t b, int32_t s)
{
    const request_plan *plan = &req->plan;
    const int64_t at = b * found->samples + s, first = plan->first_token;
    const int32_t id = req->sampling.given.data[at];
    int64_t place = id - first, rank = 1;
    int counts = place >= 0 && place < plan->vocab;
    float z = counts ? all[b * plan->vocab + place] : -INFINITY;
    float left = counts ? kept[b * plan->vocab + place] : -INFINITY;
    for (int64_t i = 0; i < plan->vocab; i++)
        rank += all[b * plan->vocab + i] > z;
    if (found->status[b] != GUMBEL_ROW_OK || id < 0) {
        assert_int_equal(found->tokens[at], -1);
        assert_int_equal(found->ranks[at], -1);
        assert_true(isnan(found->logprobs[at]) && isnan(found->scores[at]));
        return;
    }
    assert_int_equal(found->tokens[at], id);
    assert_int_equal(found->ranks[at], z > -INFINITY ? rank : -1);
    assert_true(found->scores[at] == left);
    if (plan->logprobs_of == GUMBEL_PROCESSED)
        assert_true(found->logprobs[at] == fminf(left - found->lse[b], 0));
    else if (!counts)
        assert_true(isnan(found->lse[b]) || found->logprobs[at] == -INFINITY);
}

/* Given ids of all kinds: masked tokens, tokens removed by truncation, tokens of other shards,
 * invalid ids. */
static void given_ids_of_every_kind(void **state)
{
    uint64_t random = 81;
    for (int i = 0; i < 120; i++) {
        request_plan plan = request_plan_at_random(i + 500, 0);
        plan.given_noise = 0;
        request *req = request_make(&plan, *state);
        const size_t draws = (size_t)(plan.batch * req->plan.samples);
        const size_t size = (size_t)(plan.batch * plan.vocab);
        int32_t *ids = make_zeroed(draws, sizeof *ids);
        float *all = make_zeroed(size, sizeof *all), *kept = make_zeroed(size, sizeof *kept);
        for (size_t k = 0; k < draws; k++)
            ids[k] = (int32_t)(plan.first_token + random_below(&random, (uint32_t)plan.vocab + 3)) -
                     (random_below(&random, 9) == 0 ? (int32_t)plan.first_token + 70 : 1);
        gumbel_sampling untruncated = req->sampling;
        untruncated.truncation = NULL;
        assert_int_equal(request_process(*state, &req->logits, &untruncated, all), GUMBEL_OK);
        assert_int_equal(request_process(*state, &req->logits, &req->sampling, kept), GUMBEL_OK);
        req->sampling.given = (gumbel_row_i32){ids, 0};
        outcome *found = request_outcome(req);
        assert_int_equal(request_draw(*state, req, found), GUMBEL_OK);
        for (int64_t b = 0; b < plan.batch; b++)
            for (int32_t s = 0; s < found->samples; s++)
                check_token(req, found, all, kept, b, s);
        outcome_free(found);
        request_free(req);
        free(ids);
        free(all);
        free(kept);
    }
}

/* Thousands of rows require the workspace of a few, and each row has the result that it has
 * alone. */
static void many_rows_take_a_small_workspace(void **state)
{
    enum { B = 700, V = 333, D = 24, S = 2 };
    problem_plan plan = {.batch = B, .vocab = V, .hidden_size = D, .samples = S, .seed = 82};
    problem *generated = problem_make(&plan);
    static int32_t ids[B * S];
    uint64_t random = 83;
    for (int i = 0; i < B * S; i++)
        ids[i] = (int32_t)random_below(&random, V);
    generated->sampling.given = (gumbel_row_i32){ids, 0};
    outcome *whole = outcome_make(B, S), *alone = outcome_make(1, S);
    outcome_widen(whole, 3, GUMBEL_PROCESSED);
    outcome_widen(alone, 3, GUMBEL_PROCESSED);
    size_t few, many;
    gumbel_head head;
    gumbel_sampling sampling;
    problem_rows(generated, 0, 256, &head, &sampling);
    free(call_workspace(*state, &head, NULL, &sampling, &whole->output, &few));
    free(call_workspace(*state, &generated->head, NULL, &generated->sampling, &whole->output,
                        &many));
    assert_int_equal(few, many);
    assert_int_equal(draw(*state, &generated->head, &generated->sampling, whole), GUMBEL_OK);
    for (int64_t b = 0; b < B; b += 37) {
        problem_rows(generated, b, 1, &head, &sampling);
        sampling.given.data = ids + b * S;
        assert_int_equal(draw(*state, &head, &sampling, alone), GUMBEL_OK);
        assert_true(outcome_same(whole, b, alone, OUTCOME_ALL, "a row of many"));
    }
    outcome_free(whole);
    outcome_free(alone);
    problem_free(generated);
}

/* One list of tokens for all rows; greedy rows; prepared noise and shards return an error. */
static void one_list_for_all_rows_and_errors(void **state)
{
    const float logits[2][3] = {{1, 2, 3}, {5, 1, 1}}, cold = 0;
    const int32_t ids[2] = {2, 1};
    const gumbel_logits input = {.struct_size = sizeof input,
                                 .logits = tensor_of(logits, GUMBEL_FLOAT32, 2, 3, 0)};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {&cold, GUMBEL_SAME},
                           .num_samples = 2,
                           .given = {ids, GUMBEL_SAME}};
    outcome *found = outcome_make(2, 2);
    outcome_widen(found, 0, GUMBEL_PROCESSED);
    assert_int_equal(draw_logits(*state, &input, &how, found), GUMBEL_OK);
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < 2; s++) {
            double lse = log(exp((double)logits[b][0]) + exp((double)logits[b][1]) +
                             exp((double)logits[b][2]));
            assert_int_equal(found->tokens[2 * b + s], ids[s]);
            assert_true(fabs((double)found->logprobs[2 * b + s] -
                             ((double)logits[b][ids[s]] - lse)) < 1e-6);
        }
    assert_true(found->ranks[0] == 1 && found->ranks[1] == 2 && found->ranks[2] == 2);
    gumbel_error error = {"", ""};
    gumbel_summary summaries[4];
    assert_int_equal(gumbel_partial_logits(*state, NULL, &input, &how, summaries, NULL, 0, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "sampling.given");
    how.noise = logits[0];
    assert_int_equal(
        gumbel_sample_logits(*state, NULL, &input, &how, &found->output, NULL, 0, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "sampling.noise");
    outcome_free(found);
}

/* -------------------------------------------------------------------------------- allowed ---- */

/* A list that is not empty allows its tokens only; a mask and bans restrict it further. */
static void allowed_lists_match_masks(void **state)
{
    uint64_t random = 91;
    for (int i = 0; i < 80; i++) {
        request_plan plan = request_plan_at_random(i, i % 4 == 0);
        plan.transforms = 1;
        request *listed = request_make(&plan, *state), masked = *listed;
        const int64_t words = (plan.first_token + plan.vocab + 31) / 32;
        int64_t *offsets = make_zeroed((size_t)plan.batch + 1, sizeof *offsets);
        int32_t *ids = make_zeroed((size_t)plan.batch * 40, sizeof *ids);
        int32_t *mask = make_zeroed((size_t)(plan.batch * words), sizeof *mask);
        for (int64_t b = 0; b < plan.batch; b++) {
            int32_t *row = mask + b * words;
            uint32_t count = random_below(&random, 3) ? random_below(&random, 40) : 0;
            offsets[b + 1] = offsets[b] + count;
            memset(row, count ? 0 : 0xff, (size_t)words * sizeof *row);
            for (int64_t k = offsets[b]; k < offsets[b + 1]; k++) {
                ids[k] = (int32_t)(plan.first_token + random_below(&random, (uint32_t)plan.vocab));
                row[ids[k] / 32] |= (int32_t)(1u << ids[k] % 32);
            }
            for (int64_t w = 0; w < words && listed->transforms.mask.data; w++)
                row[w] &= listed->transforms.mask
                              .data[place_of_row(&listed->sampling, listed->transforms.mask.stride,
                                                 words, b) +
                                    w];
        }
        masked.sampling.transforms = &masked.transforms;
        masked.sampling.truncation = listed->sampling.truncation;
        masked.transforms.mask = (gumbel_row_i32){mask, 0};
        listed->transforms.allowed = (gumbel_token_lists){.offsets = offsets, .ids = ids};
        outcome *expected = request_outcome(listed), *found = request_outcome(listed);
        assert_int_equal(draw_either(*state, &masked, expected), GUMBEL_OK);
        assert_int_equal(draw_either(*state, listed, found), GUMBEL_OK);
        assert_true(outcome_same(expected, 0, found, OUTCOME_ALL, request_describe(&plan)));
        outcome_free(expected);
        outcome_free(found);
        request_free(listed);
        free(offsets);
        free(ids);
        free(mask);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(given_drawn_tokens_have_the_draws_outputs),
        cmocka_unit_test(given_ids_of_every_kind),
        cmocka_unit_test(many_rows_take_a_small_workspace),
        cmocka_unit_test(one_list_for_all_rows_and_errors),
        cmocka_unit_test(allowed_lists_match_masks),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
