/* SPDX-License-Identifier: Apache-2.0
 *
 * Features for inference engines have the CPU's results: slots, live rows, given and allowed
 * tokens, and summaries merged and finished in device memory.
 */
#include "cuda_requests.h"
#include "slotted.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Requests of all kinds; every other one has a common shape. */
static request *request_at(int index, int fused)
{
    request_plan plan = request_plan_at_random(index, fused);
    plan.history = index % 2;
    if (fused && index % 3 == 0) /* shapes that Hopper's product supports */
        plan.vocab = (plan.vocab + 15) / 16 * 16;
    return request_make(&plan, cpu);
}

static gumbel_status draw_on_cpu(const request *req, int fused, outcome *into)
{
    return fused ? request_draw_fused(cpu, req, into) : request_draw(cpu, req, into);
}

/* Draw on both devices and compare. A head's logits differ from the CPU's, so that these requests
 * are drawn from logits that the CPU computed. */
static void compare_both(const request *req, const char *what)
{
    outcome *host = request_outcome(req), *device = request_outcome(req);
    gpu_request *on_gpu = gpu_request_make(req);
    CHECK(draw_on_cpu(req, 0, host) == GUMBEL_OK, "%s", host->error.message);
    gpu_request_draw(on_gpu, 0, device);
    compare_request(host, device, what);
    gpu_request_free(on_gpu);
    outcome_free(host);
    outcome_free(device);
}

/* Two equivalent requests give the same draws on the GPU. */
static void compare_same(const request *one, const request *other, int fused, const char *what)
{
    outcome *a = request_outcome(one), *b = request_outcome(one);
    gpu_request *first = gpu_request_make(one), *second = gpu_request_make(other);
    gpu_request_draw(first, fused, a);
    gpu_request_draw(second, fused, b);
    CHECK(outcome_same(a, 0, b, OUTCOME_ALL, what), "%s", what);
    draws_compared += a->batch * a->samples;
    gpu_request_free(first);
    gpu_request_free(second);
    outcome_free(a);
    outcome_free(b);
}

/* ---------------------------------------------------------------------------------- slots ---- */

static void check_slots(int count)
{
    uint64_t random = 71;
    for (int i = 0; i < count; i++) {
        int fused = i % 2;
        request *whole = request_at(i, fused);
        slotted *generated = slotted_make(whole, &random);
        compare_same(whole, &generated->req, fused, request_describe(&whole->plan));
        slotted_free(generated);
        request_free(whole);
    }
}

static void slots(void) { check_slots(120); }

/* An invalid slot affects only its row. */
static void odd_slots(void)
{
    enum { B = 4, V = 3000 };
    const int32_t of_row[B] = {2, -1, 0, 4};
    problem_plan plan = {.batch = B, .vocab = V, .hidden_size = 1, .seed = 5};
    problem *host = problem_make(&plan);
    gumbel_logits logits = make_logits(host, GUMBEL_FLOAT32, 0), there = gpu_logits(&logits);
    gumbel_sampling how = {.struct_size = sizeof how,
                           .slots = {gpu_copy(of_row, sizeof of_row), B}};
    outcome *found = outcome_make(B, 1);
    gpu_draw(NULL, &there, &how, OUTCOME_ALL, found);
    for (int b = 0; b < B; b++) {
        int right = of_row[b] >= 0 && of_row[b] < B;
        CHECK(found->status[b] == (right ? GUMBEL_ROW_OK : GUMBEL_ROW_SLOT) &&
                  (found->tokens[b] >= 0) == right,
              "row %d: status %d, token %d", b, (int)found->status[b], (int)found->tokens[b]);
    }
    outcome_free(found);
    gpu_free((void *)(uintptr_t)how.slots.of_row);
    gpu_free((void *)(uintptr_t)there.logits.data);
    free((void *)(uintptr_t)logits.logits.data);
    problem_free(host);
}

/* ------------------------------------------------------------------------------ live rows ---- */

/* A graph captured once and replayed with other numbers of live rows. */
static void check_live(int index, int fused)
{
    request *req = request_at(index, fused);
    const int64_t batch = req->plan.batch;
    int32_t rows = (int32_t)batch;
    outcome *every = request_outcome(req), *found = request_outcome(req);
    gpu_request *plain = gpu_request_make(req);
    gpu_request_draw(plain, fused, every);
    req->sampling.live_rows = &rows;
    gpu_request *live = gpu_request_make(req);
    gpu_replay captured = gpu_request_capture(live, fused, found);
    for (; rows >= 0; rows -= 1 + (int32_t)batch / 3) {
        gpu_put((void *)(uintptr_t)live->req.sampling.live_rows, &rows, sizeof rows);
        gpu_replay_draw(&captured, found);
        outcome used = *found;
        used.batch = rows;
        CHECK(outcome_same(every, 0, &used, OUTCOME_ALL, request_describe(&req->plan)),
              "%d live rows", (int)rows);
        for (int64_t b = rows; b < batch; b++)
            CHECK(found->status[b] == GUMBEL_ROW_UNUSED && isnan(found->lse[b]) &&
                      found->kept[b] == 0 && found->tokens[b * found->samples] == -1 &&
                      isnan(found->logprobs[(b + 1) * found->samples - 1]) &&
                      found->ranks[b * found->samples] == -1,
                  "%s: unused row %d has status %d, token %d", request_describe(&req->plan), (int)b,
                  (int)found->status[b], (int)found->tokens[b * found->samples]);
        draws_compared += rows * found->samples;
    }
    gpu_replay_free(&captured);
    gpu_request_free(plain);
    gpu_request_free(live);
    outcome_free(every);
    outcome_free(found);
    request_free(req);
}

static void live_rows(void)
{
    for (int i = 0; i < 60; i++)
        check_live(i, i % 2);
}

/* Plain calls, whose products draw, with and without masses. */
static void live_plain(void)
{
    static const int64_t batches[] = {1, 3, 17, 64, 130, 300};
    for (int i = 0; i < 12; i++) {
        problem_plan plan = {.batch = batches[i % 6],
                             .vocab = 4096 + 16 * i,
                             .hidden_size = 128,
                             .seed = 40 + (uint64_t)i,
                             .weight_dtype = GUMBEL_BFLOAT16,
                             .hidden_dtype = GUMBEL_BFLOAT16};
        problem *host = problem_make(&plan), *device = gpu_problem(host);
        outcome_parts parts = i < 6 ? OUTCOME_TOKENS | OUTCOME_SCORES : OUTCOME_ALL;
        outcome *every = outcome_make(plan.batch, 1), *found = outcome_make(plan.batch, 1);
        int32_t rows = (int32_t)(plan.batch + 1) / 2;
        gpu_draw(&device->head, NULL, &device->sampling, parts, every);
        device->sampling.live_rows = gpu_copy(&rows, sizeof rows);
        gpu_draw(&device->head, NULL, &device->sampling, parts, found);
        for (int64_t b = 0; b < plan.batch; b++)
            CHECK(found->tokens[b] == (b < rows ? every->tokens[b] : -1), "B %d, row %d: %d",
                  (int)plan.batch, (int)b, (int)found->tokens[b]);
        draws_compared += plan.batch;
        gpu_free((void *)(uintptr_t)device->sampling.live_rows);
        outcome_free(every);
        outcome_free(found);
        gpu_problem_free(device);
        problem_free(host);
    }
}

/* ----------------------------------------------------------------- given, allowed tokens ---- */

/* Drawn and other tokens of all requests. */
static void check_given(int count)
{
    uint64_t random = 81;
    for (int i = 0; i < count; i++) {
        request_plan plan = request_plan_at_random(i, 0);
        plan.given_noise = 0;
        request *req = request_make(&plan, cpu);
        const size_t draws = (size_t)(plan.batch * req->plan.samples);
        int32_t *ids = make_zeroed(draws, sizeof *ids);
        for (size_t k = 0; k < draws; k++)
            ids[k] =
                random_below(&random, 9) == 0
                    ? -1
                    : (int32_t)(plan.first_token + random_below(&random, (uint32_t)plan.vocab + 2));
        req->sampling.given = (gumbel_row_i32){ids, 0};
        compare_both(req, request_describe(&plan));
        request_free(req);
        free(ids);
    }
}

static void given_tokens(void) { check_given(150); }

/* From a head, drawn tokens have the outputs of the draw in every batch; more rows than one launch
 * serves use the workspace of one launch. */
static void given_fused(void)
{
    static const int64_t batches[] = {1, 7, 64, 256, 600};
    for (int i = 0; i < 5; i++) {
        request_plan plan = {.batch = batches[i],
                             .vocab = 4112,
                             .hidden_size = 64,
                             .samples = 2,
                             .num_top = 3,
                             .usual = 1,
                             .truncation = i % 2,
                             .cuts = REQUEST_TOP_K | REQUEST_TOP_P,
                             .seed = 90 + (uint64_t)i};
        request *req = request_make(&plan, cpu), scored = *req;
        outcome *drawn = request_outcome(req), *found = request_outcome(req);
        gpu_request *on_gpu = gpu_request_make(req);
        gpu_request_draw(on_gpu, 1, drawn);
        scored.sampling.given = (gumbel_row_i32){drawn->tokens, 0};
        gpu_request *again = gpu_request_make(&scored);
        gpu_request_draw(again, 1, found);
        /* The log-normaliser may come from another kernel. */
        memcpy(found->scores, drawn->scores, (size_t)(2 * plan.batch) * sizeof(float));
        compare_request(drawn, found, request_describe(&plan));
        gpu_request_free(on_gpu);
        gpu_request_free(again);
        outcome_free(drawn);
        outcome_free(found);
        request_free(req);
    }
}

static void check_allowed(int count)
{
    uint64_t random = 91;
    for (int i = 0; i < count; i++) {
        request_plan plan = request_plan_at_random(i, 0);
        plan.transforms = 1;
        request *req = request_make(&plan, cpu);
        int64_t *offsets = make_zeroed((size_t)plan.batch + 1, sizeof *offsets);
        int32_t *ids = make_zeroed((size_t)plan.batch * 40, sizeof *ids);
        for (int64_t b = 0; b < plan.batch; b++) {
            offsets[b + 1] =
                offsets[b] + (random_below(&random, 3) ? random_below(&random, 40) : 0);
            for (int64_t k = offsets[b]; k < offsets[b + 1]; k++)
                ids[k] =
                    (int32_t)(plan.first_token + random_below(&random, (uint32_t)plan.vocab + 1));
        }
        req->transforms.allowed = (gumbel_token_lists){.offsets = offsets, .ids = ids};
        compare_both(req, request_describe(&plan));
        request_free(req);
        free(offsets);
        free(ids);
    }
}

static void allowed_tokens(void) { check_allowed(120); }

/* -------------------------------------------------------------------- merge and finish ---- */

/* Summaries of shards, as ranks gather them, merged and finished on the GPU as on the CPU. */
static void merged_summaries(void)
{
    enum { B = 5, S = 3, V = 4096, PARTS = 40 };
    problem_plan plan = {.batch = B, .vocab = V, .hidden_size = 1, .samples = S, .seed = 7};
    problem *host = problem_make(&plan);
    gumbel_logits logits = make_logits(host, GUMBEL_FLOAT32, 0);
    gumbel_summary parts[PARTS][B * S];
    const int64_t width = V / PARTS / 64 * 64 + 64;
    for (int p = 0; p < PARTS; p++) {
        gumbel_logits shard = logits;
        int64_t first = p * width < V ? p * width : V - 64;
        shard.logits.data = (const float *)logits.logits.data + first;
        shard.logits.stride = V;
        shard.logits.cols = V - first < width ? V - first : width;
        shard.first_token = first;
        gumbel_summary *own = summarise(cpu, NULL, &shard, &host->sampling);
        memcpy(parts[p], own, sizeof parts[p]);
        free(own);
    }
    outcome *wanted = outcome_make(B, S), *found = outcome_make(B, S);
    gumbel_error error = {"", ""};
    CHECK(gumbel_finish(NULL, NULL, parts[0], PARTS, B, S, &wanted->output, &error) == GUMBEL_OK,
          "%s", error.message);
    gumbel_summary *there = gpu_copy(parts, sizeof parts);
    gumbel_output out = gpu_output_make(found);
    for (int merged = 0; merged < 2; merged++) {
        for (int p = 1; p < PARTS && merged; p++)
            CHECK(gumbel_merge(gpu, NULL, there, there + p * B * S, B * S, &error) == GUMBEL_OK,
                  "%s", error.message);
        CHECK(gumbel_finish(gpu, NULL, there, merged ? 1 : PARTS, B, S, &out, &error) == GUMBEL_OK,
              "%s", error.message);
        GPU(cuCtxSynchronize);
        gpu_output_fetch(&out, found);
        CHECK(outcome_same(wanted, 0, found, OUTCOME_TOKENS | OUTCOME_SCORES, "finished there"),
              "merged %d", merged);
        for (int i = 0; i < B * S; i++)
            CHECK(fabsf(wanted->logprobs[i] - found->logprobs[i]) <=
                      0x1p-21f * fmaxf(1, fabsf(wanted->lse[i / S])),
                  "log-probability %d is %a, not %a", i, (double)found->logprobs[i],
                  (double)wanted->logprobs[i]);
        draws_compared += B * S;
    }
    CHECK(gumbel_merge(gpu, NULL, (gumbel_summary *)((char *)there + 8), there, 1, &error) ==
              GUMBEL_ERROR_ARGUMENT,
          "8 bytes off");
    gpu_output_free(&out);
    gpu_free(there);
    outcome_free(wanted);
    outcome_free(found);
    free((void *)(uintptr_t)logits.logits.data);
    problem_free(host);
}

/* For compute-sanitizer. */
static void engine_small(void)
{
    check_slots(6);
    check_live(1, 1);
    check_live(2, 0);
    check_given(6);
    check_allowed(6);
    merged_summaries();
}

/* For racecheck, which takes a second a row. */
static void engine_few(void)
{
    check_slots(1);
    check_live(1, 1);
    check_given(2);
    check_allowed(1);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"slots", slots},
        {"odd_slots", odd_slots},
        {"live_rows", live_rows},
        {"live_plain", live_plain},
        {"given_tokens", given_tokens},
        {"given_fused", given_fused},
        {"allowed_tokens", allowed_tokens},
        {"merged_summaries", merged_summaries},
        {"engine_small", engine_small},
        {"engine_few", engine_few},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
