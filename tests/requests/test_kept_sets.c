/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of the tokens that truncation keeps, against the processed logits of the same request: the
 * kept tokens are those above -inf. Requests of every kind, orders and programs, every ISA and
 * thread count, from logits and from hidden states; rows that keep more tokens than fit.
 */
#include "prefixed_programs.h"
#include "requests.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { POISON_ID = -7 };

static int scale_count(int usual)
{
    int many = getenv("GUMBEL_NIGHTLY") ? 20 * usual : usual;
    return TEST_SANITIZED ? (many + 11) / 12 : many;
}

/* Kept sets of a request's rows. */
typedef struct kept_lists {
    int32_t capacity;
    int32_t *ids;
    float *logprobs;
} kept_lists;

static kept_lists make_lists(int64_t batch, int32_t capacity)
{
    const size_t places = (size_t)batch * (size_t)capacity;
    kept_lists lists = {capacity, make_zeroed(places, sizeof *lists.ids),
                        make_zeroed(places, sizeof *lists.logprobs)};
    for (size_t i = 0; i < places; i++) {
        lists.ids[i] = POISON_ID;
        lists.logprobs[i] = POISON_ID;
    }
    return lists;
}

static void free_lists(kept_lists *lists)
{
    free(lists->ids);
    free(lists->logprobs);
}

static void request_lists(outcome *from, const kept_lists *lists, int with_logprobs)
{
    from->output.kept_capacity = lists->capacity;
    from->output.kept_ids = lists->ids;
    from->output.kept_logprobs = with_logprobs ? lists->logprobs : NULL;
}

/* Compares row b with its processed logits; returns whether it is listed. */
static int check_row(const request *req, const outcome *drawn, const kept_lists *lists, int64_t b,
                     const float *z, int with_logprobs)
{
    const int32_t *ids = lists->ids + b * lists->capacity;
    const float *logprobs = lists->logprobs + b * lists->capacity;
    const int ok = drawn->status[b] == GUMBEL_ROW_OK;
    int32_t kept = 0;
    for (int64_t i = 0; i < req->plan.vocab && ok; i++)
        kept += z[i] > -INFINITY;
    assert_int_equal(drawn->kept[b], kept);
    const int32_t listed = kept <= lists->capacity ? kept : 0;
    int32_t at = 0;
    for (int64_t i = 0; i < req->plan.vocab && at < listed; i++) {
        if (!(z[i] > -INFINITY))
            continue;
        assert_int_equal(ids[at], req->plan.first_token + i);
        if (with_logprobs && drawn->output.logprobs_of == GUMBEL_PROCESSED) {
            const float expected = fminf(z[i] - drawn->lse[b], 0.0f);
            assert_memory_equal(&logprobs[at], &expected, sizeof expected);
        }
        at++;
    }
    for (; at < lists->capacity; at++) {
        assert_int_equal(ids[at], POISON_ID);
        assert_true(logprobs[at] == POISON_ID);
    }
    return listed > 0;
}

/* Checks all rows of a request; returns the number of rows that are listed. */
static int check_request(gumbel_device *device, const request *req, int32_t capacity,
                         int with_logprobs)
{
    const int64_t batch = req->plan.batch, vocab = req->plan.vocab;
    float *z = make_zeroed((size_t)(batch * vocab), sizeof *z);
    outcome *drawn = request_outcome(req);
    kept_lists lists = make_lists(batch, capacity);
    int listed = 0;
    request_lists(drawn, &lists, with_logprobs);
    assert_int_equal(request_draw(device, req, drawn), GUMBEL_OK);
    assert_int_equal(request_process(device, &req->logits, &req->sampling, z), GUMBEL_OK);
    for (int64_t b = 0; b < batch; b++)
        listed += check_row(req, drawn, &lists, b, z + b * vocab, with_logprobs);
    free_lists(&lists);
    outcome_free(drawn);
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
    for (int i = 0; i < scale_count(400); i++) {
        prefixed_programs programs;
        gumbel_device *device = open_device(isas[i % count], 1 + i % 3, 64 << i % 3);
        request_plan plan = request_plan_at_random(i * 3 + 1, 0);
        plan.truncation = i % 5 > 0;
        request *req = request_make(&plan, device);
        if (i % 5 > 2)
            prefixed_programs_set(&programs, req, &random);
        const int32_t capacity = 1 + (int32_t)random_below(&random, i % 2 ? 30 : 1000);
        listed += check_request(device, req, capacity, i % 4 > 0);
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
