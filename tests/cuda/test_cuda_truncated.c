/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows with transforms, truncation and row outputs on a GPU, compared with the CPU through the
 * public API: every transform, rule, order and output, on usual and adversarial rows, in mixed
 * batches; captured graphs.
 */
#include "cuda_few_outputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------- agreement ---- */

static void compare_plan(const request_plan *plan, int fused)
{
    compare_requests(request_make(plan, cpu), fused);
}

static void truncated_plans(void)
{
    for (int i = 0; i < 400; i++) {
        request_plan plan = request_plan_at_random(i, 0);
        compare_plan(&plan, 0);
    }
}

/* The naive fused kernel has the CPU's bits, and supports mixed dtypes. */
static void truncated_from_hidden(void)
{
    for (int i = 0; i < 60; i++) {
        request_plan plan = request_plan_at_random(i, 1);
        request *req = request_make(&plan, cpu);
        int mixed = req->head.weight.dtype != req->head.hidden.dtype;
        request_free(req);
        if (mixed)
            compare_plan(&plan, 1);
    }
}

/* Tensor-core kernels store logits, and on Hopper block maxima, for kernels that truncate: exact
 * products have the CPU's bits. */
static void truncated_stored_logits(void)
{
    for (int i = 0; i < 60; i++) {
        request_plan plan = {.batch = i % 12 == 11 ? 300 : 1 + i * 7 % 70,
                             .vocab = 16 * (1 + i * 37 % 600),
                             .first_token = i % 3 ? 0 : 4 * i,
                             .samples = 1 + i % 2,
                             .num_top = i % 2 ? 1 + i % 30 : 0,
                             .kept_capacity = i % 3 ? 0 : 1 + i * 9,
                             .order = (gumbel_order)(i / 2 % REQUEST_ORDERS),
                             .ties = (gumbel_ties)(i % 2),
                             .transforms = i % 4 != 0,
                             .truncation = 1,
                             .history = i % 8 != 7,
                             .seed = 7000 + (uint64_t)i};
        request *req = request_make(&plan, cpu);
        make_exact_head(req, i % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 8 + 8 * (i % 12));
        compare_requests(req, 1);
    }
}

/* The vocabulary of a large model, rows of every kind. */
static void truncated_large(void)
{
    for (int i = 0; i < 2 * ROW_KINDS; i++) {
        request_plan plan = {.batch = 3,
                             .vocab = 151936,
                             .samples = 1 + i % 2,
                             .num_top = i % 3 ? 20 : 0,
                             .dtype = (gumbel_dtype)(1 + i % 3),
                             .order = (gumbel_order)(i % REQUEST_ORDERS),
                             .ties = (gumbel_ties)(i % 2),
                             .logprobs_of = i % 5 == 0 ? GUMBEL_RAW : GUMBEL_PROCESSED,
                             .transforms = i % 4 == 0,
                             .truncation = 1,
                             .history = i % 8 == 0,
                             .kind = 1 + i % ROW_KINDS,
                             .seed = 50 + (uint64_t)i};
        compare_plan(&plan, 0);
    }
}

static void truncated_tokens(void)
{
    for (int i = 0; i < 150; i++) {
        request_plan plan = request_plan_at_random(i, 0);
        compare_tokens(request_make(&plan, cpu), 0);
    }
    for (int i = 0; i < 20; i++) {
        request_plan plan = {.batch = 3,
                             .vocab = 100003,
                             .dtype = (gumbel_dtype)(1 + i % 3),
                             .order = (gumbel_order)(i % REQUEST_ORDERS),
                             .transforms = i % 3 == 0,
                             .history = i % 6 == 0,
                             .truncation = i % 5 != 0,
                             .seed = 300 + (uint64_t)i};
        compare_tokens(request_make(&plan, cpu), 0);
    }
}

/* Masks and penalties only, some of which raise tokens: the draw applies them to candidates. */
static void truncated_edits(void)
{
    for (int i = 0; i < 120; i++) {
        request_plan plan = {.batch = 1 + i * 7 % 40,
                             .vocab = i % 10 ? 1 + i * 977 % 9000 : 100003,
                             .first_token = i % 4 ? 0 : 5 * i,
                             .samples = 1 + i % 3,
                             .dtype = (gumbel_dtype)(1 + i % 3),
                             .scale = i % 7 == 3 ? -0.5f : 1,
                             .soft_cap = i % 5 == 4 ? 5.0f : 0,
                             .transforms = 1,
                             .history = 1,
                             .kind = 1 + i % ROW_KINDS,
                             .seed = 500 + 2 * (uint64_t)i};
        request *req = request_make(&plan, cpu);
        const gumbel_token_lists none = {.offsets = NULL};
        req->transforms.banned = req->transforms.bias = req->transforms.late_bias = none;
        compare_some(req, 0, OUTCOME_TOKENS | OUTCOME_SCORES | (i % 2 ? OUTCOME_MASS : 0));
    }
}

/* Few rows, and more, which other rungs serve. */
static void truncated_hostile(void)
{
    for (int i = 0; i < 42; i++) {
        request_plan plan = {.batch = i % 4 ? 4 : 34,
                             .vocab = 70000 + i,
                             .num_top = i % 2 ? 128 : 0,
                             .dtype = GUMBEL_FLOAT32,
                             .order = (gumbel_order)(i / 7 % REQUEST_ORDERS),
                             .ties = (gumbel_ties)(i % 2),
                             .truncation = 1,
                             .kind = 1 + ROW_GAUSSIAN,
                             .seed = 900 + (uint64_t)i};
        request *req = request_make(&plan, cpu);
        float *logits = (float *)req->logits.logits.data;
        for (int64_t b = 0; b < plan.batch; b++)
            for (int64_t t = 0; t < plan.vocab; t++)
                logits[b * req->logits.logits.stride + t] =
                    request_hostile_logit(i % 7, t, plan.vocab);
        compare_requests(req, 0);
    }
}

/* Draw by a top_k, a top_p or both, 0 for none. Frees the request. */
static void compare_rules(request *req, int32_t k, float p)
{
    gumbel_truncation *t = &req->truncation;
    t->top_k = (gumbel_row_i32){k > 0 ? &k : NULL, k > 0 ? GUMBEL_SAME : 0};
    t->top_p = (gumbel_row_f32){p > 0 ? &p : NULL, p > 0 ? GUMBEL_SAME : 0};
    t->min_p = (gumbel_row_f32){NULL, 0};
    compare_tokens(req, 0);
}

/* One rule that keeps many tokens, and two, on rows of any kind. A cluster truncates if kept counts
 * are requested; otherwise it may draw first. */
static void truncated_single_rows(void)
{
    static const int32_t top_k[] = {300, 2000, 30000, 0, 0, 0, 0, 50};
    static const float top_p[] = {0, 0, 0, 0.3f, 0.95f, 0.9999f, 1e-30f, 0.95f};
    for (int i = 0; i < 256; i++) {
        request_plan plan = {.batch = i % 2 ? 2 : 4,
                             .vocab = i % 128 < 64 ? 70000 + i : 5000 + 77 * i,
                             .dtype = GUMBEL_FLOAT32,
                             .order = (gumbel_order)(i % REQUEST_ORDERS),
                             .ties = (gumbel_ties)(i / 4 % 2),
                             .truncation = 1,
                             .kind = 1 + ROW_GAUSSIAN,
                             .seed = 2001 + 2 * (uint64_t)i + (i >= 128)};
        request *req = request_make(&plan, cpu);
        float *logits = (float *)req->logits.logits.data;
        for (int64_t b = 0; b < plan.batch && i % 8 < 7; b++)
            for (int64_t t = 0; t < plan.vocab; t++)
                logits[b * req->logits.logits.stride + t] =
                    request_hostile_logit(i % 8, t, plan.vocab);
        compare_rules(req, top_k[i / 8 % 8], top_p[i / 8 % 8]);
    }
}

/* Neighbouring logits with equal z: all tokens tie at the truncation threshold, although one token
 * of every eighth of the row has the larger logit. */
static void truncated_rounded(void)
{
    const float high = 0x1.ccccdp+1f, low = 0x1.cccccep+1f, temperature = 0.9f;
    const int32_t top_k = 8;
    for (int i = 0; i < 8; i++) {
        request_plan plan = {.batch = i % 2 ? 40 : 3,
                             .vocab = i < 4 ? 151936 : 9000,
                             .num_top = i / 2 % 2 ? 20 : 0,
                             .dtype = GUMBEL_FLOAT32,
                             .ties = (gumbel_ties)(i / 4),
                             .truncation = 1,
                             .kind = 1 + ROW_GAUSSIAN,
                             .seed = 1500 + (uint64_t)i};
        request *req = request_make(&plan, cpu);
        const gumbel_tensor *t = &req->logits.logits;
        for (int64_t k = 0; k < plan.batch * plan.vocab; k++)
            ((float *)t->data)[k / plan.vocab * t->stride + k % plan.vocab] =
                k % plan.vocab % 19072 == 0 ? high : low;
        req->sampling.temperature = (gumbel_row_f32){&temperature, GUMBEL_SAME};
        req->truncation.top_k = (gumbel_row_i32){&top_k, GUMBEL_SAME};
        req->truncation.min_p = req->truncation.top_p = (gumbel_row_f32){NULL, 0};
        compare_requests(req, 0);
    }
}

/* Batches whose rows a CTA tries to serve from few blocks: masks and histories that remove the
 * largest logits, penalties that raise logits, soft-caps, unaligned ranges; all outputs, and tokens
 * only. */
static void truncated_blocks(void)
{
    for (int i = 0; i < 160; i++) {
        request_plan plan = {.batch = 33 + i * 7 % 50,
                             .vocab = i % 20 == 19 ? 151936 - i : 1 + 131 * i,
                             .first_token = i % 3 ? 0 : 37 * i,
                             .vocab_size = i % 7 == 6 ? 37 * i + 1 + 90 * i : 0,
                             .samples = 1 + i % 2,
                             .num_top = i % 2 ? 1 + i * 11 % 128 : 0,
                             .dtype = (gumbel_dtype)(1 + i % 3),
                             .scale = i % 5 == 4 ? 0.5f : 0,
                             .soft_cap = i % 8 == 7 ? 30 : 0,
                             .order = (gumbel_order)(i / 3 % REQUEST_ORDERS),
                             .ties = (gumbel_ties)(i % 2),
                             .transforms = i % 4 != 0,
                             .truncation = 1,
                             .history = 1,
                             .seed = 5000 + (uint64_t)i};
        request *req = request_make(&plan, cpu);
        req->transforms.banned = req->transforms.bias = req->transforms.late_bias =
            (gumbel_token_lists){.offsets = NULL, .ids = NULL};
        if (i % 2)
            compare_requests(req, 0);
        else
            compare_tokens(req, 0);
    }
}

/* Only a top_p: rows are drawn before they are truncated, after a product by the draw of its own
 * kernel; not with a negative scale, which would make padding the largest. */
static void truncated_pivots(void)
{
    static const float top_p[] = {0.95f, 0.3f, 1e-30f, 1.0f, 0.8f, 0.9999f, 0.5f};
    float own[300];
    for (int i = 0; i < 120; i++) {
        request_plan plan = {.batch = i % 40 == 39 ? 300 : 1 + i * 13 % 90,
                             .vocab = i % 10 == 9 ? 151936 : 16 * (1 + i * 97 % 2500),
                             .first_token = i % 3 ? 0 : 4 * i,
                             .vocab_size = i % 7 == 6 ? 4 * i + 16 : 0,
                             .dtype = (gumbel_dtype)(1 + i % 3),
                             .scale = i % 5 == 4    ? 0.5f
                                      : i % 15 == 2 ? -2.0f
                                                    : 0,
                             .order = (gumbel_order)(i / 2 % REQUEST_ORDERS),
                             .truncation = 1,
                             .seed = 9000 + 2 * (uint64_t)i};
        request *req = request_make(&plan, cpu);
        for (int64_t b = 0; b < plan.batch; b++)
            own[b] = top_p[(b + i) % 7];
        req->truncation = (gumbel_truncation){
            .struct_size = sizeof req->truncation, .top_p = {own, 0}, .order = plan.order};
        if (i % 2) {
            make_exact_head(req, i % 4 == 1 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 8 + i % 12 * 8);
            if (i % 8 == 7)
                req->head.bias = make_exact(req, GUMBEL_FLOAT32, 1, plan.vocab, plan.seed);
        }
        compare_tokens(req, i % 2);
    }
}

/* More tokens than a cluster holds: portable kernels serve them. */
static void truncated_huge(void)
{
    for (int i = 0; i < 6; i++) {
        request_plan plan = {.batch = 2,
                             .vocab = 450000,
                             .num_top = i % 2 ? 20 : 0,
                             .order = (gumbel_order)(i % REQUEST_ORDERS),
                             .transforms = i == 3,
                             .truncation = 1,
                             .kind = 1 + i % 2,
                             .seed = 40 + (uint64_t)i};
        compare_plan(&plan, 0);
    }
}

/* Every row of a mixed batch has the same outputs alone. */
static void truncated_alone(void)
{
    request_plan plan = {.batch = 40,
                         .vocab = 12345,
                         .samples = 2,
                         .num_top = 7,
                         .transforms = 1,
                         .truncation = 1,
                         .seed = 77};
    request *req = request_make(&plan, cpu);
    gpu_request *on_gpu = gpu_request_make(req);
    outcome *whole = request_outcome(req);
    gpu_request_draw(on_gpu, 0, whole);
    for (int64_t b = 0; b < plan.batch; b++) {
        gpu_request row = {.copies = {.count = 0}};
        request_rows(&on_gpu->req, b, 1, &row.req);
        outcome *alone = request_outcome(&row.req);
        gpu_request_draw(&row, 0, alone);
        draws_compared += plan.samples;
        CHECK(outcome_same(whole, b, alone, OUTCOME_ALL, request_describe(&plan)),
              "row %d gives something else alone", (int)b);
        outcome_free(alone);
    }
    outcome_free(whole);
    gpu_request_free(on_gpu);
    request_free(req);
}

/* ---------------------------------------------------------------------------------- graphs ---- */

/* A captured request reads its row parameters at each replay. */
static void truncated_graph(void)
{
    request_plan plan = {.batch = 6, .vocab = 5000, .num_top = 5, .truncation = 1, .seed = 5};
    uint32_t counters[6] = {0};
    request *req = request_make(&plan, cpu);
    req->sampling.first_sample = (gumbel_row_u32){counters, 0};
    gpu_request *on_gpu = gpu_request_make(req);
    request *r = &on_gpu->req;
    outcome *host = request_outcome(req), *device = request_outcome(req);
    gpu_replay captured = gpu_request_capture(on_gpu, 0, device);
    for (uint32_t step = 0; step < 4; step++) {
        uint64_t *position = (uint64_t *)req->sampling.position.data;
        for (int64_t b = 0; b < plan.batch; b++)
            position[b] = 100 * step + (uint32_t)b;
        for (int64_t b = 0; b < plan.batch; b++)
            counters[b] = step * (UINT32_MAX - (uint32_t)b);
        gpu_put((void *)r->sampling.position.data, position, (size_t)plan.batch * sizeof *position);
        gpu_put((void *)(uintptr_t)r->sampling.first_sample.data, counters, sizeof counters);
        gpu_replay_draw(&captured, device);
        CHECK(request_draw(cpu, req, host) == GUMBEL_OK, "step %u", step);
        compare_request(host, device, request_describe(&plan));
    }
    gpu_replay_free(&captured);
    outcome_free(host);
    outcome_free(device);
    gpu_request_free(on_gpu);
    request_free(req);
}

/* Every `step`-th small plan of at most `rows_max` rows, some of them also with 33 rows, or with 17
 * if few rows are wanted; and truncations that keep many tokens, two of them by pivots. CTAs serve
 * rows from their blocks from 17 rows on. */
static void check_small(int step, int64_t rows_max)
{
    static const int32_t top_k[] = {600, 2500, 0, 0, 0, 0};
    static const float top_p[] = {0, 0, 0.999f, 0.999f, 0.95f, 0.3f};
    for (int i = 60; i < 72; i += step) {
        request_plan plan = request_plan_at_random(i, 0);
        plan.batch = plan.batch < rows_max ? plan.batch : rows_max;
        compare_plan(&plan, 0);
        if (i % (4 * step))
            continue;
        plan.batch = rows_max < 33 ? 17 : 33;
        plan.vocab = 300;
        plan.first_token = plan.vocab_size = 0;
        compare_plan(&plan, 0);
    }
    for (int i = 5; i >= 0; i -= step) {
        request_plan plan = {.batch = i < 4 ? 1 : 4,
                             .vocab = i < 4 ? 4000 : 20000,
                             .dtype = GUMBEL_FLOAT32,
                             .truncation = 1,
                             .kind = 1 + ROW_GAUSSIAN,
                             .seed = 7 + 2 * (uint64_t)i + (i >= 4)};
        compare_rules(request_make(&plan, cpu), top_k[i], top_p[i]);
    }
}

/* For compute-sanitizer, whose racecheck takes a second a row. */
static void truncated_small(void) { check_small(1, INT64_MAX); }
static void truncated_few(void) { check_small(4, 2); }

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"truncated_plans", truncated_plans},
        {"truncated_from_hidden", truncated_from_hidden},
        {"truncated_stored_logits", truncated_stored_logits},
        {"truncated_large", truncated_large},
        {"truncated_alone", truncated_alone},
        {"truncated_blocks", truncated_blocks},
        {"truncated_graph", truncated_graph},
        {"truncated_tokens", truncated_tokens},
        {"truncated_edits", truncated_edits},
        {"truncated_hostile", truncated_hostile},
        {"truncated_huge", truncated_huge},
        {"truncated_single_rows", truncated_single_rows},
        {"truncated_pivots", truncated_pivots},
        {"truncated_rounded", truncated_rounded},
        {"truncated_small", truncated_small},
        {"truncated_few", truncated_few},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
