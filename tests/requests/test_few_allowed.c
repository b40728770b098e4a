/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that allow few tokens, from hidden states: every output has the bits of a draw from logits
 * that were computed one by one; weights of other tokens are not read, whatever other transforms
 * and outputs the call has; max_allowed changes no output.
 */
#define _GNU_SOURCE
#include "requests.h"
#include "test_scale.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "every_isa.h"

/* Lists of up to `longest` allowed tokens, owned by the request: with duplicates, ids of other
 * shards and of padding; some lists are empty, if `empty`. */
static gumbel_token_lists allow_tokens(request *req, uint32_t longest, int empty, uint64_t *random)
{
    const request_plan *plan = &req->plan;
    int64_t *offsets = request_allocate(req, (size_t)plan->batch + 1, sizeof *offsets);
    int32_t *ids = request_allocate(req, (size_t)plan->batch * longest, sizeof *ids);
    for (int64_t b = 0; b < plan->batch; b++) {
        const uint32_t count = empty && random_below(random, 4) == 0 ? 0
                               : random_below(random, 3) == 0        ? 1 + random_below(random, 2)
                                                              : 1 + random_below(random, longest);
        offsets[b + 1] = offsets[b] + count;
        for (int64_t k = offsets[b]; k < offsets[b + 1]; k++) {
            const uint32_t place = random_below(random, (uint32_t)plan->vocab + 9);
            ids[k] = (int32_t)plan->first_token + (int32_t)place;
            if (random_below(random, 16) == 0)
                ids[k] = (int32_t)random_below(random, 1u << 31);
            if (k > offsets[b] && random_below(random, 8) == 0)
                ids[k] = ids[k - 1];
        }
    }
    return (gumbel_token_lists){.offsets = offsets, .ids = ids};
}

/* The logits of a request's product, each from a shard of one token. */
static gumbel_logits compute_logits(gumbel_device *device, const request *req)
{
    const gumbel_head *head = &req->head;
    return (gumbel_logits){
        .struct_size = sizeof(gumbel_logits),
        .logits = tensor_of(product_logits(device, head), GUMBEL_FLOAT32, req->plan.batch,
                            req->plan.vocab, 0),
        .scale = head->scale,
        .soft_cap = head->soft_cap,
        .first_token = head->first_token,
        .vocab_size = head->vocab_size,
    };
}

static void outputs_are_those_of_a_draw_from_logits(void **state)
{
    static const uint32_t lengths[] = {2, 8, 40, 200};
    const int count = scale_count(120, 12);
    uint64_t random = 17;
    for (int i = 0; i < count; i++) {
        request_plan plan = request_plan_at_random(i, 1);
        plan.transforms = 1;
        request *req = request_make(&plan, *state), from_logits = *req;
        req->transforms.allowed = allow_tokens(req, lengths[i % 4], i % 3 == 0, &random);
        from_logits = *req;
        from_logits.product = NULL;
        from_logits.logits = compute_logits(*state, req);
        outcome *expected = request_outcome(req), *found = request_outcome(req);
        assert_int_equal(request_draw(*state, &from_logits, expected), GUMBEL_OK);
        for (int64_t most = 0; most < 3; most++) { /* unknown, too small, exceeded by no row */
            req->transforms.max_allowed = most < 2 ? most : INT64_MAX;
            assert_int_equal(request_draw_fused(*state, req, found), GUMBEL_OK);
            assert_true(outcome_same(expected, 0, found, OUTCOME_ALL, request_describe(&plan)));
        }
        free((void *)(uintptr_t)from_logits.logits.logits.data);
        outcome_free(expected);
        outcome_free(found);
        request_free(req);
    }
}

/* ------------------------------------------------------------------------ weights not read ---- */

enum { V = 2048, B = 9 };

/* Weights of a page a row. */
typedef struct paged_head {
    size_t page;
    char *weight; /* float32 [V, page / 4] */
    float *hidden;
    gumbel_head head;
} paged_head;

static paged_head make_paged_head(uint64_t *random)
{
    paged_head h = {.page = (size_t)sysconf(_SC_PAGESIZE)};
    const int64_t columns = (int64_t)(h.page / sizeof(float));
    h.weight = mmap(NULL, V * h.page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(h.weight, MAP_FAILED);
    h.hidden = make_zeroed((size_t)(B * columns), sizeof *h.hidden);
    for (int64_t i = 0; i < V * columns; i++)
        ((float *)(void *)h.weight)[i] = random_normal(random);
    for (int64_t i = 0; i < B * columns; i++)
        h.hidden[i] = 0.05f * random_normal(random);
    h.head = (gumbel_head){.struct_size = sizeof h.head,
                           .hidden = tensor_of(h.hidden, GUMBEL_FLOAT32, B, columns, 0),
                           .weight = tensor_of(h.weight, GUMBEL_FLOAT32, V, columns, 0)};
    return h;
}

static void free_paged_head(paged_head *h)
{
    munmap(h->weight, V * h->page);
    free(h->hidden);
}

/* Makes the weights of all tokens that no row allows unreadable, or all readable again. */
static void protect_weights(const paged_head *h, const int32_t *mask, int readable)
{
    for (int64_t token = 0; token < V; token++) {
        int allowed = readable;
        for (int64_t b = 0; b < B; b++)
            allowed |= (uint32_t)mask[b * (V / 32) + token / 32] >> token % 32 & 1;
        assert_int_equal(
            mprotect(h->weight + (size_t)token * h->page, h->page, allowed ? PROT_READ : PROT_NONE),
            0);
    }
}

static void other_weights_are_not_read(void **state)
{
    static int32_t mask[B * (V / 32)];
    const int32_t top_k = 3;
    const float top_p = 0.9f, temperatures[B] = {1, 0, 0.5f, 2, 1, 1, 0, 1, 1};
    uint64_t random = 5;
    paged_head h = make_paged_head(&random);
    gumbel_transforms t = {.struct_size = sizeof t, .mask = {mask, 0}};
    gumbel_truncation cut = {
        .struct_size = sizeof cut, .top_k = {&top_k, GUMBEL_SAME}, .top_p = {&top_p, GUMBEL_SAME}};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {temperatures, 0},
                           .num_samples = 2,
                           .transforms = &t};
    for (int i = 0; i < 12; i++) {
        outcome *expected = outcome_make(B, 2), *found = outcome_make(B, 2);
        if (i % 2) {
            outcome_widen(expected, 4, GUMBEL_PROCESSED);
            outcome_widen(found, 4, GUMBEL_PROCESSED);
        }
        how.truncation = i % 3 == 2 ? &cut : NULL;
        memset(mask, 0, sizeof mask);
        for (int k = 0; k < B * (1 + 3 * i); k++) {
            const uint32_t token =
                i % 4 == 3 ? 640 + (uint32_t)k / B % 16 : random_below(&random, V);
            mask[k % B * (V / 32) + token / 32] |= (int32_t)(1u << token % 32);
        }
        protect_weights(&h, mask, 1);
        assert_int_equal(draw(*state, &h.head, &how, expected), GUMBEL_OK);
        protect_weights(&h, mask, 0);
        assert_int_equal(draw(*state, &h.head, &how, found), GUMBEL_OK);
        assert_true(outcome_same(expected, 0, found, OUTCOME_ALL, "protected weights"));
        outcome_free(expected);
        outcome_free(found);
    }
    free_paged_head(&h);
}

/* ---------------------------------------------------------------------------------- errors ---- */

static void assert_refused(gumbel_device *device, const gumbel_head *head,
                           const gumbel_transforms *t, const char *message)
{
    const gumbel_sampling how = {.struct_size = sizeof how, .transforms = t};
    size_t bytes;
    gumbel_error error;
    assert_int_equal(gumbel_workspace_size(device, head, NULL, &how, NULL, &bytes, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "sampling.transforms.max_allowed");
    assert_string_equal(error.message, message);
}

static void explanations_name_the_weights(void **state)
{
    static const float values[64];
    static const int32_t mask[1] = {5};
    const gumbel_head head = {.struct_size = sizeof head,
                              .hidden = tensor_of(values, GUMBEL_FLOAT32, 1, 2, 0),
                              .weight = tensor_of(values, GUMBEL_FLOAT32, 32, 2, 0)};
    const gumbel_transforms t = {.struct_size = sizeof t, .mask = {mask, 0}, .max_allowed = 2};
    gumbel_sampling how = {.struct_size = sizeof how, .transforms = &t};
    char text[2048];
    gumbel_error error;
    for (int masked = 0; masked < 2; masked++) {
        how.transforms = masked ? &t : NULL;
        assert_int_equal(gumbel_explain(*state, &head, NULL, &how, NULL, text, sizeof text, &error),
                         GUMBEL_OK);
        assert_int_equal(strstr(text, "weights: of allowed tokens alone") != NULL, masked);
    }
}

static void invalid_limits_are_errors(void **state)
{
    static const float values[64];
    static const int32_t mask[1];
    const gumbel_head head = {.struct_size = sizeof head,
                              .hidden = tensor_of(values, GUMBEL_FLOAT32, 1, 2, 0),
                              .weight = tensor_of(values, GUMBEL_FLOAT32, 32, 2, 0)};
    gumbel_transforms t = {.struct_size = sizeof t, .max_allowed = 2};
    assert_refused(*state, &head, &t, "requires mask or allowed");
    t.mask = (gumbel_row_i32){mask, 0};
    t.max_allowed = -1;
    assert_refused(*state, &head, &t, "is -1; it must be >= 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_those_of_a_draw_from_logits),
        cmocka_unit_test(other_weights_are_not_read),
        cmocka_unit_test(explanations_name_the_weights),
        cmocka_unit_test(invalid_limits_are_errors),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
