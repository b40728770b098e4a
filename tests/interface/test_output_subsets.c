/* SPDX-License-Identifier: Apache-2.0
 *
 * Every output except `tokens` may be NULL. Requested alone, an output has the bits that it has
 * with all others.
 */
#include "outcome.h"
#include "requests.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

#define NUM_BEST 3

/* An output of four bytes an element. */
typedef struct field {
    const char *name;
    size_t at; /* in gumbel_output */
} field;

#define FIELD(member)                                                                              \
    {                                                                                              \
#member, offsetof(gumbel_output, member)                                                   \
    }

static const field fields[] = {
    FIELD(tokens),  FIELD(logprobs), FIELD(scores),      FIELD(lse),          FIELD(status),
    FIELD(ranks),   FIELD(kept),     FIELD(top_ids),     FIELD(top_logprobs), FIELD(top_logits),
    FIELD(entropy), FIELD(best_ids), FIELD(best_scores),
};
enum { FIELDS = sizeof fields / sizeof *fields, TOP_IDS = 7, TOP_LOGITS = 9, BEST_IDS = 11 };

/* The number of elements of a row in an output. */
static size_t width_of(const request *req, int i)
{
    const size_t samples = (size_t)req->plan.samples, top = (size_t)req->plan.num_top;
    const size_t widths[FIELDS] = {samples, samples, samples, 1, 1,        samples, 1,
                                   top,     top,     top,     1, NUM_BEST, NUM_BEST};
    return widths[i];
}

static void *pointer_at(const gumbel_output *output, int i)
{
    void *pointer;
    memcpy(&pointer, (const char *)output + fields[i].at, sizeof pointer);
    return pointer;
}

/* Allocates the outputs whose bits are in `set`. */
static gumbel_output make_output(const request *req, unsigned set)
{
    gumbel_output generated = {.struct_size = sizeof generated,
                               .num_top = req->plan.num_top,
                               .logprobs_of = req->plan.logprobs_of,
                               .num_best = set >> BEST_IDS ? NUM_BEST : 0};
    for (int i = 0; i < FIELDS; i++) {
        const size_t count = (size_t)req->plan.batch * width_of(req, i) + 1;
        void *memory = set >> i & 1 ? make_zeroed(count, sizeof(int32_t)) : NULL;
        if (memory)
            memset(memory, 0xA7, count * sizeof(int32_t));
        memcpy((char *)&generated + fields[i].at, &memory, sizeof memory);
    }
    return generated;
}

static void free_output(const gumbel_output *output)
{
    for (int i = 0; i < FIELDS; i++)
        free(pointer_at(output, i));
}

static void draw_request(gumbel_device *device, const request *req, const gumbel_output *output)
{
    const gumbel_head *head = req->product ? &req->head : NULL;
    const gumbel_logits *logits = head ? NULL : &req->logits;
    gumbel_error error = {"", ""};
    size_t bytes;
    if (gumbel_workspace_size(device, head, logits, &req->sampling, output, &bytes, &error) !=
        GUMBEL_OK)
        fail_msg("%s: %s", error.field, error.message);
    void *workspace = aligned_alloc(64, bytes / 64 * 64 + 64);
    gumbel_status status =
        head ? gumbel_sample(device, NULL, head, &req->sampling, output, workspace, bytes, &error)
             : gumbel_sample_logits(device, NULL, logits, &req->sampling, output, workspace, bytes,
                                    &error);
    free(workspace);
    if (status != GUMBEL_OK)
        fail_msg("%s: %s", error.field, error.message);
}

/* All NaNs are equal; no id or status has the bits of a NaN. */
static int same_bits(const uint32_t *a, const uint32_t *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (a[i] != b[i] && !((a[i] & INT32_MAX) > 0x7f800000 && (b[i] & INT32_MAX) > 0x7f800000 &&
                              a[i] < 0xfff00000 && b[i] < 0xfff00000))
            return 0;
    return 1;
}

static void check_set(gumbel_device *device, const request *req, const gumbel_output *full,
                      unsigned set)
{
    gumbel_output some = make_output(req, set);
    draw_request(device, req, &some);
    for (int i = 0; i < FIELDS; i++)
        if (pointer_at(&some, i) && !same_bits(pointer_at(&some, i), pointer_at(full, i),
                                               (size_t)req->plan.batch * width_of(req, i)))
            fail_msg("%s of the set %#x differs: %s", fields[i].name, set,
                     request_describe(&req->plan));
    free_output(&some);
}

static void check_request(gumbel_device *device, int index)
{
    request_plan plan = request_plan_at_random(index, index % 2);
    plan.samples = index % 4 == 3 ? 3 : 1;
    plan.num_top = 4;
    request *req = request_make(&plan, device);
    const int lists = plan.samples == 1 && !req->sampling.given.data;
    const unsigned all = lists ? (1u << FIELDS) - 1 : (1u << BEST_IDS) - 1;
    gumbel_output full = make_output(req, all);
    draw_request(device, req, &full);
    check_set(device, req, &full, 1);
    for (int i = 0; i < FIELDS; i++) {
        unsigned one = 1u << i | (i == TOP_LOGITS ? 1u << TOP_IDS : 0);
        if (all >> i & 1) {
            check_set(device, req, &full, 1u | one);
            if (i > 0 && i != TOP_IDS)
                check_set(device, req, &full, all & ~(1u << i));
        }
    }
    check_set(device, req, &full, all & ~(1u << TOP_IDS | 1u << TOP_LOGITS));
    free_output(&full);
    request_free(req);
}

static void each_output_alone_has_the_same_bits(void **state)
{
    for (int index = 0; index < (TEST_SANITIZED ? 10 : 40); index++)
        check_request(*state, index);
}

/* num_top and num_best without arrays request nothing. */
static void counts_without_arrays_request_nothing(void **state)
{
    float values[2 * 70] = {0};
    int32_t tokens[4] = {-7, -7, -7, -7};
    const gumbel_logits logits = {.struct_size = sizeof logits,
                                  .logits = tensor_of(values, GUMBEL_FLOAT32, 2, 70, 0)};
    const gumbel_sampling two = {.struct_size = sizeof two, .num_samples = 2};
    const gumbel_output output = {
        .struct_size = sizeof output, .tokens = tokens, .num_top = 5, .num_best = 5};
    size_t bytes;
    assert_int_equal(gumbel_workspace_size(*state, NULL, &logits, &two, &output, &bytes, NULL),
                     GUMBEL_OK);
    void *workspace = aligned_alloc(64, bytes / 64 * 64 + 64);
    assert_int_equal(
        gumbel_sample_logits(*state, NULL, &logits, &two, &output, workspace, bytes, NULL),
        GUMBEL_OK);
    for (int i = 0; i < 4; i++)
        assert_in_range(tokens[i], 0, 69);
    free(workspace);
}

/* top_logits requires top_ids. */
static void top_logits_require_ids(void **state)
{
    float values[70] = {0}, top[3];
    int32_t token;
    gumbel_error error;
    const gumbel_logits logits = {.struct_size = sizeof logits,
                                  .logits = tensor_of(values, GUMBEL_FLOAT32, 1, 70, 0)};
    const gumbel_output output = {
        .struct_size = sizeof output, .tokens = &token, .num_top = 3, .top_logits = top};
    assert_int_equal(
        gumbel_sample_logits(*state, NULL, &logits, NULL, &output, values, sizeof values, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "output.top_logits");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_output_alone_has_the_same_bits),
        cmocka_unit_test(counts_without_arrays_request_nothing),
        cmocka_unit_test(top_logits_require_ids),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
