/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of the tokens that truncation keeps, against the processed logits of the same request: the
 * kept tokens are those above -inf. Requests of every kind, orders and programs, every ISA and
 * thread count, from logits and from hidden states; rows that keep more tokens than fit.
 */
#include "prefixed_programs.h"
#include "requests.h"
#include "test_scale.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Compares row b with its processed logits z; places that no call writes have the bits of `blank`.
 * Returns whether the row's tokens are listed. */
static int check_row(const request *req, const outcome *drawn, const outcome *blank, int64_t b,
                     const float *z)
{
    const int32_t capacity = req->plan.kept_capacity;
    const int32_t *ids = drawn->kept_ids + b * capacity;
    const float *logprobs = drawn->kept_logprobs + b * capacity;
    const int ok = drawn->status[b] == GUMBEL_ROW_OK;
    int32_t kept = 0, at = 0;
    for (int64_t i = 0; i < req->plan.vocab && ok; i++)
        kept += z[i] > -INFINITY;
    assert_int_equal(drawn->kept[b], kept);
    const int32_t listed = kept <= capacity ? kept : 0;
    for (int64_t i = 0; i < req->plan.vocab && at < listed; i++) {
        if (!(z[i] > -INFINITY))
            continue;
        assert_int_equal(ids[at], req->plan.first_token + i);
        if (drawn->output.kept_logprobs && drawn->output.logprobs_of == GUMBEL_PROCESSED) {
            const float expected = fminf(z[i] - drawn->lse[b], 0.0f);
            assert_memory_equal(&logprobs[at], &expected, sizeof expected);
        }
        at++;
    }
    const size_t rest = (size_t)(capacity - listed) * sizeof *ids;
    assert_memory_equal(ids + listed, blank->kept_ids, rest);
    assert_memory_equal(logprobs + listed, blank->kept_logprobs, rest);
    return listed > 0;
}

/* Checks all rows of a request; returns the number of rows that are listed. */
static int check_request(gumbel_device *device, const request *req, int with_logprobs)
{
    const int64_t batch = req->plan.batch, vocab = req->plan.vocab;
    float *z = make_zeroed((size_t)(batch * vocab), sizeof *z);
    outcome *drawn = request_outcome(req), *blank = request_outcome(req);
    int listed = 0;
    if (!with_logprobs)
        drawn->output.kept_logprobs = NULL;
    assert_int_equal(request_draw(device, req, drawn), GUMBEL_OK);
    assert_int_equal(request_process(device, &req->logits, &req->sampling, z), GUMBEL_OK);
    for (int64_t b = 0; b < batch; b++)
        listed += check_row(req, drawn, blank, b, z + b * vocab);
    outcome_free(drawn);
    outcome_free(blank);
    free(z);
    return listed;
}

static void lists_are_the_processed_tokens(void **state)
{
    gumbel_isa isas[4];
    const int count = list_isas(isas);
    uint64_t random = 51;
    int listed = 0;
    (void)state;
    for (int i = 0; i < scale_count(400, 12); i++) {
        prefixed_programs programs;
        gumbel_device *device = open_device(isas[i % count], 1 + i % 3, 64 << i % 3);
        request_plan plan = request_plan_at_random(i * 3 + 1, 0);
        plan.truncation = i % 5 > 0;
        plan.kept_capacity = 1 + (int32_t)random_below(&random, i % 2 ? 30 : 1000);
        request *req = request_make(&plan, device);
        if (i % 5 > 2)
            prefixed_programs_set(&programs, req, &random);
        listed += check_request(device, req, i % 4 > 0);
        request_free(req);
        gumbel_close(device);
    }
    assert_true(listed > (TEST_SANITIZED ? 10 : 200));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_the_processed_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
