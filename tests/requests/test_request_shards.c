/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests on shards of every shape: pairs of first token, V and end of the valid tokens, at every
 * offset within a block of 64; shards smaller than a block; shards of padding alone, whose rows are
 * empty for any initial contents of the workspace. The reference is compared with the oracle, and
 * every instruction set with the reference.
 */
#include "fixtures.h"
#include "oracle_comparison.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK = 64, TOP = REQUEST_SHARD_TOP };

/* The logit of the token at index `at` of a list. */
static float logit_listed(const request *req, const outcome *drawn, int64_t at)
{
    const gumbel_tensor *t = &req->logits.logits;
    int64_t b = at / TOP, i = drawn->top_ids[at] - req->plan.first_token;
    if (drawn->status[b] != GUMBEL_ROW_OK)
        return NAN;
    if (drawn->top_ids[at] < 0)
        return -INFINITY;
    if (i < 0 || i >= req->plan.vocab)
        fail_msg("%s: token %d is listed", request_describe(&req->plan), drawn->top_ids[at]);
    return ((const float *)t->data)[b * (t->stride ? t->stride : t->cols) + i];
}

static void check_top_logits(const request *req, const outcome *drawn, const float *found)
{
    for (int64_t at = 0; at < drawn->batch * TOP; at++) {
        float expected = logit_listed(req, drawn, at);
        if (found[at] != expected && !(isnan(found[at]) && isnan(expected)))
            fail_msg("%s: top_logits[%d] is %a, not %a", request_describe(&req->plan), (int)at,
                     (double)found[at], (double)expected);
    }
}

/* Draw with all outputs. */
static outcome *draw_all(gumbel_device *device, const request *req, int fused)
{
    outcome *drawn = request_outcome(req);
    float *logits = make_zeroed((size_t)(req->plan.batch * TOP), sizeof *logits);
    drawn->output.top_logits = logits;
    assert_int_equal((fused ? request_draw_fused : request_draw)(device, req, drawn), GUMBEL_OK);
    check_top_logits(req, drawn, logits);
    drawn->output.top_logits = NULL;
    free(logits);
    return drawn;
}

/* Nothing can be drawn; softmax reports it, too. */
static void check_padding(gumbel_device *device, const request *req, const outcome *drawn)
{
    int64_t count = req->plan.batch * req->plan.vocab;
    float *generated = make_zeroed((size_t)count, sizeof *generated);
    size_t bytes;
    void *workspace = call_workspace(device, NULL, &req->logits, &req->sampling, NULL, &bytes);
    for (int64_t b = 0; b < req->plan.batch; b++)
        assert_int_equal(drawn->status[b], GUMBEL_ROW_EMPTY);
    assert_int_equal(gumbel_softmax(device, NULL, &req->logits, &req->sampling, generated, 0,
                                    workspace, bytes, NULL),
                     GUMBEL_OK);
    for (int64_t i = 0; i < count; i++)
        assert_true(isnan(generated[i]));
    free(workspace);
    free(generated);
}

typedef struct devices {
    gumbel_device *all[4];
    int count;
} devices;

static void check_plan(const devices *on, const request_plan *plan, verdicts *seen)
{
    request *req = request_make(plan, on->all[0]);
    outcome *expected = draw_all(on->all[0], req, 0);
    const char *what = request_describe(plan);
    if (!compare_with_oracle(on->all[0], req, expected, seen))
        fail_msg("the oracle differs");
    if (plan->vocab_size && plan->vocab_size <= plan->first_token)
        check_padding(on->all[0], req, expected);
    for (int k = 0; k < on->count; k++)
        for (int fused = 0; fused <= (plan->hidden_size > 0); fused++) {
            outcome *found = draw_all(on->all[k], req, fused);
            if (!outcome_same(expected, 0, found, OUTCOME_ALL, what))
                fail_msg("device %d differs from the reference", k);
            outcome_free(found);
        }
    outcome_free(expected);
    request_free(req);
}

/* Every pair of residues of first token, V and end; threads and tiles of many sizes. */
static void every_shard_offset(void **state)
{
    gumbel_isa isas[4];
    devices on = {.count = list_isas(isas)};
    verdicts seen = {0};
    uint64_t random = 21;
    (void)state;
    for (int k = 0; k < on.count; k++)
        on.all[k] = open_device(isas[k], 1 + k, 64 << k);
    for (int first = 0; first < BLOCK; first++)
        for (int vocab = 0; vocab < BLOCK; vocab++) {
            request_plan plan =
                request_plan_on_shard(first, vocab, (first + vocab * 3) % BLOCK, &random);
            check_plan(&on, &plan, &seen);
        }
    print_verdicts("shards", &seen);
    assert_true(seen.faulty > 2000 &&
                seen.truncated > 1000); /* enough rows of each kind were tested */
    for (int k = 0; k < on.count; k++)
        gumbel_close(on.all[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_shard_offset)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
