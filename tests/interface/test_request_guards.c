/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests access no byte outside their buffers and write no input. A workspace of the wrong size
 * is an error and leaves every output unchanged. Structs of older callers are read to their
 * struct_size only.
 */
#include "guard_pages.h"
#include "hostile.h"
#include "token_tables.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

/* ----------------------------------------------------------------------------- guarded ---- */

/* Copies a row parameter of B rows with `width` elements each. */
static const void *guard_rows(guard_set *f, const void *data, int64_t stride, int64_t width,
                              int64_t batch, size_t size)
{
    int64_t step = stride == GUMBEL_SAME ? 0 : stride ? stride : width;
    return data ? guard_copy(f, data, (size_t)((batch - 1) * step + width) * size, 0) : NULL;
}

#define GUARD_ROWS(rows)                                                                           \
    (rows).data = guard_rows(f, (rows).data, (rows).stride, 1, batch, sizeof *(rows).data)

static gumbel_token_lists guard_lists(guard_set *f, gumbel_token_lists lists, int64_t batch)
{
    if (!lists.offsets)
        return lists;
    size_t length = (size_t)lists.offsets[batch];
    gumbel_token_lists copy = {
        .offsets = guard_copy(f, lists.offsets, (size_t)(batch + 1) * sizeof *lists.offsets, 0),
        .ids = guard_copy(f, lists.ids, length * sizeof *lists.ids, 0)};
    if (lists.values)
        copy.values = guard_copy(f, lists.values, length * sizeof *lists.values, 0);
    return copy;
}

static void guard_history(guard_set *f, request *r)
{
    gumbel_history *h = &r->history;
    size_t vocab = (size_t)h->vocab_size, batch = (size_t)r->plan.batch;
    size_t words = (vocab + 31) / 32;
    h->prompt = guard_copy(f, h->prompt, batch * words * sizeof *h->prompt, 0);
    h->output = guard_copy(f, h->output, batch * words * sizeof *h->output, 0);
    h->counts = guard_copy(f, h->counts, batch * vocab * (h->count_bits == 32 ? 4 : 2), 0);
    r->transforms.history = h;
}

static void guard_transforms(guard_set *f, request *r)
{
    gumbel_transforms *t = &r->transforms;
    int64_t batch = r->plan.batch, words = (r->plan.first_token + r->plan.vocab + 31) / 32;
    t->mask.data = guard_rows(f, t->mask.data, t->mask.stride, words, batch, sizeof(int32_t));
    t->banned = guard_lists(f, t->banned, batch);
    t->bias = guard_lists(f, t->bias, batch);
    t->prompt_tokens = guard_lists(f, t->prompt_tokens, batch);
    t->output_tokens = guard_lists(f, t->output_tokens, batch);
    t->late_bias = guard_lists(f, t->late_bias, batch);
    GUARD_ROWS(t->repetition);
    GUARD_ROWS(t->frequency);
    GUARD_ROWS(t->presence);
    if (t->history)
        guard_history(f, r);
}

static void guard_programs(guard_set *f, request *r)
{
    gumbel_programs *q = &r->programs;
    int64_t batch = r->plan.batch;
    q->rules = guard_copy(f, q->rules, (size_t)q->count * GUMBEL_PROGRAM_LENGTH, 0);
    GUARD_ROWS(q->program);
    GUARD_ROWS(q->min_keep);
    GUARD_ROWS(q->temperature_range);
    GUARD_ROWS(q->temperature_exponent);
    GUARD_ROWS(q->typical_p);
    GUARD_ROWS(q->top_n_sigma);
    GUARD_ROWS(q->epsilon);
    GUARD_ROWS(q->eta);
    GUARD_ROWS(q->top_a);
    GUARD_ROWS(q->surprise);
    GUARD_ROWS(q->xtc_probability);
    GUARD_ROWS(q->xtc_threshold);
    GUARD_ROWS(q->smoothing_factor);
    GUARD_ROWS(q->smoothing_curve);
    GUARD_ROWS(q->adaptive_target);
    q->xtc_keep = guard_lists(f, q->xtc_keep, batch);
}

/* Copies every input of `whole` between guard pages. */
static void guard_request(guard_set *f, const request *whole, request *r)
{
    int64_t batch = whole->plan.batch;
    request_rows(whole, 0, batch, r);
    gumbel_sampling *s = &r->sampling;
    gumbel_truncation *t = &r->truncation;
    r->logits.logits = guard_tensor(f, r->logits.logits);
    r->head.hidden = guard_tensor(f, r->head.hidden);
    r->head.weight = guard_tensor(f, r->head.weight);
    r->head.bias = guard_tensor(f, r->head.bias);
    GUARD_ROWS(s->temperature);
    GUARD_ROWS(s->seed);
    GUARD_ROWS(s->position);
    GUARD_ROWS(s->first_sample);
    if (s->noise)
        s->noise = guard_copy(
            f, s->noise, (size_t)(batch * r->plan.samples * r->plan.vocab) * sizeof *s->noise, 0);
    if (s->token_ids)
        s->token_ids = guard_copy(f, s->token_ids, (size_t)r->plan.vocab * sizeof *s->token_ids, 0);
    if (s->transforms)
        guard_transforms(f, r);
    GUARD_ROWS(t->min_p);
    GUARD_ROWS(t->top_k);
    GUARD_ROWS(t->top_p);
    if (t->programs)
        guard_programs(f, r);
}

static outcome guard_outcome(guard_set *f, const request *req)
{
    size_t rows = (size_t)req->plan.batch, draws = rows * (size_t)req->plan.samples;
    size_t tops = rows * (size_t)req->plan.num_top;
    outcome o = {.batch = req->plan.batch, .samples = req->plan.samples};
    o.tokens = guard_copy(f, NULL, draws * 4, 1);
    o.logprobs = guard_copy(f, NULL, draws * 4, 1);
    o.scores = guard_copy(f, NULL, draws * 4, 1);
    o.lse = guard_copy(f, NULL, rows * 4, 1);
    o.status = guard_copy(f, NULL, rows * 4, 1);
    o.ranks = guard_copy(f, NULL, draws * 4, 1);
    o.kept = guard_copy(f, NULL, rows * 4, 1);
    o.top_ids = guard_copy(f, NULL, tops * 4, 1);
    o.top_logprobs = guard_copy(f, NULL, tops * 4, 1);
    o.output = (gumbel_output){.struct_size = sizeof o.output,
                               .tokens = o.tokens,
                               .logprobs = o.logprobs,
                               .scores = o.scores,
                               .lse = o.lse,
                               .status = o.status,
                               .ranks = o.ranks,
                               .kept = o.kept,
                               .top_ids = o.top_ids,
                               .top_logprobs = o.top_logprobs,
                               .num_top = req->plan.num_top,
                               .logprobs_of = req->plan.logprobs_of};
    return o;
}

/* A workspace can be aligned and adjacent to a guard page because its size is a multiple of 64. */
static void *guard_workspace(guard_set *f, gumbel_device *device, const request *r,
                             const gumbel_output *output, size_t *bytes)
{
    const gumbel_head *head = r->product && output ? &r->head : NULL;
    assert_int_equal(gumbel_workspace_size(device, head, head ? NULL : &r->logits, &r->sampling,
                                           output, bytes, NULL),
                     GUMBEL_OK);
    assert_int_equal(*bytes % 64, 0);
    void *workspace = guard_copy(f, NULL, *bytes, 1);
    hostile_fill(workspace, *bytes);
    return workspace;
}

static void check_draw(gumbel_device *device, const request *req, const outcome *expected,
                       int at_front)
{
    guard_set f = {.at_front = at_front};
    request r;
    size_t bytes;
    guard_request(&f, req, &r);
    outcome found = guard_outcome(&f, req);
    void *workspace = guard_workspace(&f, device, &r, &found.output, &bytes);
    assert_int_equal(r.product ? gumbel_sample(device, NULL, &r.head, &r.sampling, &found.output,
                                               workspace, bytes, NULL)
                               : gumbel_sample_logits(device, NULL, &r.logits, &r.sampling,
                                                      &found.output, workspace, bytes, NULL),
                     GUMBEL_OK);
    assert_true(outcome_same(expected, 0, &found, OUTCOME_ALL, request_describe(&req->plan)));
    free_guard_set(&f);
}

/* The result of gumbel_process_logits(), rounded to `dtype`: [B, V] at `stride`, 0xA7 in gaps. */
static void *make_rounded(gumbel_device *device, const request *req, gumbel_dtype dtype,
                          int64_t stride)
{
    int64_t batch = req->plan.batch, vocab = req->plan.vocab;
    size_t size = (size_t)(batch * stride) * dtype_size(dtype);
    float *z = make_zeroed((size_t)(batch * vocab), sizeof *z);
    void *rounded = make_zeroed(size, 1);
    memset(rounded, 0xA7, size);
    assert_int_equal(request_process(device, &req->logits, &req->sampling, z), GUMBEL_OK);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < vocab; i++)
            dtype_store(rounded, dtype, b * stride + i, z[b * vocab + i]);
    free(z);
    return rounded;
}

/* Processes logits into rows with gaps, which must not be written. */
static void check_process(gumbel_device *device, const request *req, gumbel_dtype dtype,
                          int at_front)
{
    int64_t batch = req->plan.batch, vocab = req->plan.vocab, stride = vocab + 3;
    size_t length = (size_t)((batch - 1) * stride + vocab) * dtype_size(dtype), bytes;
    guard_set f = {.at_front = at_front};
    request r;
    guard_request(&f, req, &r);
    void *expected = make_rounded(device, req, dtype, stride);
    void *found = guard_copy(&f, NULL, length, 1);
    void *workspace = guard_workspace(&f, device, &r, NULL, &bytes);
    assert_int_equal(gumbel_process_logits_into(device, NULL, &r.logits, &r.sampling, found, dtype,
                                                stride, workspace, bytes, NULL),
                     GUMBEL_OK);
    assert_memory_equal(found, expected, length);
    free(expected);
    free_guard_set(&f);
}

/* Processes logits in place. */
static void check_in_place(gumbel_device *device, const request *req)
{
    const gumbel_tensor *t = &req->logits.logits;
    int64_t stride = t->stride ? t->stride : t->cols;
    size_t element = dtype_size(t->dtype);
    size_t length = (size_t)((t->rows - 1) * stride + t->cols) * element;
    char *expected = make_rounded(device, req, t->dtype, stride), *both = make_zeroed(length, 1);
    memcpy(both, t->data, length);
    gumbel_logits logits = req->logits;
    logits.logits.data = both;
    assert_int_equal(request_process_into(device, &logits, &req->sampling, both, t->dtype, stride),
                     GUMBEL_OK);
    for (int64_t b = 0; b < t->rows; b++)
        assert_memory_equal(both + (size_t)(b * stride) * element,
                            expected + (size_t)(b * stride) * element, (size_t)t->cols * element);
    free(both);
    free(expected);
}

static void check_plan(gumbel_device *device, const request_plan *plan)
{
    request *req = request_make(plan, device);
    outcome *expected = request_outcome(req);
    assert_int_equal(req->product ? request_draw_fused(device, req, expected)
                                  : request_draw(device, req, expected),
                     GUMBEL_OK);
    for (int at_front = 0; at_front <= 1; at_front++) {
        check_draw(device, req, expected, at_front);
        check_process(device, req, GUMBEL_FLOAT32, at_front);
        check_process(device, req, req->logits.logits.dtype, at_front);
    }
    check_in_place(device, req);
    outcome_free(expected);
    request_free(req);
}

static void requests_from_logits_stay_within_buffers(void **state)
{
    for (int i = 0; i < 160; i++) {
        request_plan plan = request_plan_at_random(i, 0);
        check_plan(*state, &plan);
    }
}

static void requests_from_heads_stay_within_buffers(void **state)
{
    for (int i = 0; i < 60; i++) {
        request_plan plan = request_plan_at_random(i, 1);
        check_plan(*state, &plan);
    }
}

static void programs_stay_within_buffers(void **state)
{
    for (int i = 0; i < 120; i++) {
        request_plan plan = request_plan_at_random(50000 + i, i % 4 == 0);
        plan.truncation = 1;
        plan.programs = 1 + i % GUMBEL_PROGRAMS_MAX;
        check_plan(*state, &plan);
    }
}

static void tables_stay_within_buffers(void **state)
{
    uint64_t random = 5;
    for (int i = 0; i < 80; i++) {
        request_plan plan = request_plan_at_random(i, i % 3 == 0);
        table_adapt_plan(&plan);
        int32_t *ids = table_make((table_kind)(i % TABLE_KINDS), plan.vocab, 9000, &random);
        request *req = request_make(&plan, *state);
        req->sampling.token_ids = ids;
        outcome *expected = request_outcome(req);
        assert_int_equal(req->product ? request_draw_fused(*state, req, expected)
                                      : request_draw(*state, req, expected),
                         GUMBEL_OK);
        for (int at_front = 0; at_front <= 1; at_front++)
            check_draw(*state, req, expected, at_front);
        outcome_free(expected);
        request_free(req);
        free(ids);
    }
}

/* ------------------------------------------------------------------------- wrong sizes ---- */

static void assert_refused(gumbel_device *device, const request *req, outcome *drawn,
                           void *workspace, size_t bytes)
{
    gumbel_error error = {"", ""};
    outcome_poison(drawn);
    assert_int_equal(gumbel_sample_logits(device, NULL, &req->logits, &req->sampling,
                                          &drawn->output, workspace, bytes, &error),
                     GUMBEL_ERROR_WORKSPACE);
    assert_true(outcome_untouched(drawn));
    assert_int_equal(strncmp(error.field, "workspace", 9), 0);
}

/* A workspace too small by 64 bytes, missing, or not aligned. */
static void wrong_workspaces_touch_no_output(void **state)
{
    for (int i = 0; i < 40; i++) {
        request_plan plan = request_plan_at_random(i, 0);
        request *req = request_make(&plan, *state);
        outcome *drawn = request_outcome(req);
        size_t bytes;
        unsigned char *workspace =
            call_workspace(*state, NULL, &req->logits, &req->sampling, &drawn->output, &bytes);
        assert_true(bytes > 64);
        assert_refused(*state, req, drawn, workspace, bytes - 64);
        assert_refused(*state, req, drawn, workspace, 0);
        assert_refused(*state, req, drawn, NULL, bytes);
        assert_refused(*state, req, drawn, workspace + 32, bytes);
        free(workspace);
        outcome_free(drawn);
        request_free(req);
    }
}

/* The limit that the header states: the workspace of a plain call, 4 * B * V bytes, and some KiB a
 * row and thread. */
static void workspace_sizes_meet_the_header_limit(void **state)
{
    for (int i = 0; i < 200; i++) {
        request_plan plan = request_plan_at_random(i, 0);
        request *req = request_make(&plan, *state);
        outcome *drawn = request_outcome(req);
        size_t plain, found, batch = (size_t)plan.batch;
        gumbel_limits limits = {
            .struct_size = sizeof limits, .batch = plan.batch, .num_samples = plan.samples};
        assert_int_equal(gumbel_workspace_most(*state, &limits, &plain, NULL), GUMBEL_OK);
        assert_int_equal(gumbel_workspace_size(*state, NULL, &req->logits, &req->sampling,
                                               &drawn->output, &found, NULL),
                         GUMBEL_OK);
        assert_true(found <= plain + 4 * batch * (size_t)plan.vocab + 65536 * (batch + 4));
        outcome_free(drawn);
        request_free(req);
    }
}

/* ---------------------------------------------------------------------------- old callers ---- */

#define V 300

/* Structs that end before the fields of requests; bytes after their end are not read. */
static void older_structs_use_defaults(void **state)
{
    static float logits[3 * V];
    uint64_t random = 91;
    for (int i = 0; i < 3 * V; i++)
        logits[i] = random_normal(&random);
    gumbel_logits input = {.struct_size = sizeof input,
                           .logits = tensor_of(logits, GUMBEL_FLOAT32, 3, V, 0)};
    gumbel_sampling plain = {.struct_size = sizeof plain, .num_samples = 4}, old = plain;
    old.struct_size = offsetof(gumbel_sampling, transforms);
    old.transforms = (const gumbel_transforms *)(uintptr_t)0x10;
    old.truncation = (const gumbel_truncation *)(uintptr_t)0x10;
    outcome *expected = outcome_make(3, 4), *found = outcome_make(3, 4);
    assert_int_equal(draw_logits(*state, &input, &plain, expected), GUMBEL_OK);
    found->output.struct_size = offsetof(gumbel_output, ranks);
    found->output.ranks = (int32_t *)(uintptr_t)0x10;
    found->output.kept = (int32_t *)(uintptr_t)0x10;
    found->output.num_top = -1;
    assert_int_equal(draw_logits(*state, &input, &old, found), GUMBEL_OK);
    assert_true(outcome_same(expected, 0, found, OUTCOME_ALL, "older structs"));
    outcome_free(expected);
    outcome_free(found);
}

/* A longer struct of a newer caller is accepted if its unknown bytes are zero. */
static void newer_structs_need_zero_extensions(void **state)
{
    struct newer {
        gumbel_truncation known;
        int64_t unknown;
    } newer = {.known = {.struct_size = sizeof newer}};
    struct newer_transforms {
        gumbel_transforms known;
        int64_t unknown;
    } edits = {.known = {.struct_size = sizeof edits}};
    float logits[V] = {0};
    const int32_t k = 3;
    gumbel_logits input = {.struct_size = sizeof input,
                           .logits = tensor_of(logits, GUMBEL_FLOAT32, 1, V, 0)};
    gumbel_sampling sampling = {
        .struct_size = sizeof sampling, .transforms = &edits.known, .truncation = &newer.known};
    size_t bytes;
    newer.known.top_k = (gumbel_row_i32){&k, GUMBEL_SAME};
    assert_int_equal(gumbel_workspace_size(*state, NULL, &input, &sampling, NULL, &bytes, NULL),
                     GUMBEL_OK);
    newer.unknown = 1;
    assert_int_equal(gumbel_workspace_size(*state, NULL, &input, &sampling, NULL, &bytes, NULL),
                     GUMBEL_ERROR_ARGUMENT);
    newer.unknown = 0;
    edits.unknown = 1;
    assert_int_equal(gumbel_workspace_size(*state, NULL, &input, &sampling, NULL, &bytes, NULL),
                     GUMBEL_ERROR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_from_logits_stay_within_buffers),
        cmocka_unit_test(requests_from_heads_stay_within_buffers),
        cmocka_unit_test(programs_stay_within_buffers),
        cmocka_unit_test(tables_stay_within_buffers),
        cmocka_unit_test(wrong_workspaces_touch_no_output),
        cmocka_unit_test(workspace_sizes_meet_the_header_limit),
        cmocka_unit_test(older_structs_use_defaults),
        cmocka_unit_test(newer_structs_need_zero_extensions),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
