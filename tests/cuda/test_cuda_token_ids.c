/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws from heads and logits over a subset of the vocabulary on a GPU: the CPU's bits, by tables
 * of all kinds; heads against the same rows with noise prepared by the table; captured graphs;
 * rows whose id is out of range, greedy ones too; prepared noise.
 */
#include "cuda_requests.h"
#include "token_tables.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A random request with a table, which the caller frees. */
static request *make_table_request(int index, int fused, int32_t **ids)
{
    uint64_t random = 11 + (uint64_t)index;
    request_plan plan = request_plan_at_random(index, fused);
    table_adapt_plan(&plan);
    if (fused && index % 2) { /* shapes that Hopper's product supports */
        plan.vocab = (plan.vocab + 15) / 16 * 16;
        plan.hidden_size = (plan.hidden_size + 7) / 8 * 8;
    }
    plan.kept_capacity = gpu_has_clusters() && index % 3 == 0 ? 50 : 0;
    plan.entropy = index % 4 == 1;
    plan.programs = index % 5 == 2 ? 2 : 0;
    *ids = table_make((table_kind)(index % TABLE_KINDS), plan.vocab, plan.vocab + 100000, &random);
    request *req = request_make(&plan, cpu);
    req->programs.xtc_keep = (gumbel_token_lists){0};
    req->sampling.token_ids = *ids;
    return req;
}

/* -------------------------------------------------------------------------- the CPU's bits ---- */

static void compare_logits(int index)
{
    int32_t *ids;
    request *req = make_table_request(index, 0, &ids);
    gpu_request *on_gpu = gpu_request_make(req);
    outcome *host = request_outcome(req), *device = request_outcome(req);
    CHECK(request_draw(cpu, req, host) == GUMBEL_OK, "%s", host->error.message);
    gpu_request_draw(on_gpu, 0, device);
    compare_request(host, device, request_describe(&req->plan));
    outcome_free(host);
    outcome_free(device);
    gpu_request_free(on_gpu);
    request_free(req);
    free(ids);
}

/* A head's logits differ from the CPU's: its draw is compared with one by rows, on the GPU, with
 * noise that the table prepared, and a mask, so that the same kernels serve both. */
static void compare_head(int index)
{
    int32_t *ids;
    request *req = make_table_request(index, 1, &ids), rows = *req;
    const request_plan *plan = &req->plan;
    const size_t words = ((size_t)plan->vocab + 31) / 32;
    int32_t *mask = make_zeroed(words, sizeof *mask);
    memset(mask, 0xff, words * sizeof *mask);
    outcome *expected = request_outcome(req), *found = request_outcome(req);
    rows.sampling.noise = table_noise(&req->sampling, plan->batch, plan->vocab);
    rows.sampling.token_ids = NULL;
    gpu_request *by_ids = gpu_request_make(req), *by_rows = gpu_request_make(&rows);
    int32_t *there = gpu_copy(mask, words * sizeof *mask);
    by_rows->req.transforms = (gumbel_transforms){.struct_size = sizeof by_rows->req.transforms,
                                                  .mask = {there, GUMBEL_SAME}};
    by_rows->req.sampling.transforms = &by_rows->req.transforms;
    gpu_request_draw(by_rows, 1, expected);
    table_map_outcome(ids, req->plan.vocab, expected);
    gpu_request_draw(by_ids, 1, found);
    CHECK(outcome_same(expected, 0, found, OUTCOME_ALL, request_describe(plan)), "a head");
    draws_compared += plan->batch * plan->samples;
    gpu_request_free(by_ids);
    gpu_request_free(by_rows);
    gpu_free(there);
    free((void *)(uintptr_t)rows.sampling.noise);
    free(mask);
    outcome_free(expected);
    outcome_free(found);
    request_free(req);
    free(ids);
}

static void check_tables(int count)
{
    for (int i = 0; i < count; i++) {
        compare_logits(i);
        compare_head(i);
    }
}

static void tables(void) { check_tables(200); }

/* A draft head of EAGLE-3's size. */
static void draft_vocabulary(void)
{
    static const int64_t batches[] = {1, 7, 64, 200};
    for (int i = 0; i < 8; i++) {
        uint64_t random = (uint64_t)i;
        const request_plan plan = {.batch = batches[i % 4],
                                   .vocab = 32000,
                                   .samples = 1 + i % 2,
                                   .usual = 1,
                                   .truncation = i > 3,
                                   .cuts = REQUEST_TOP_K | REQUEST_TOP_P,
                                   .dtype = i % 2 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT32,
                                   .seed = 70 + (uint64_t)i};
        request *req = request_make(&plan, cpu);
        int32_t *ids = table_make((table_kind)(i % 2), plan.vocab, 151936, &random);
        outcome *host = request_outcome(req), *device = request_outcome(req);
        req->sampling.token_ids = ids;
        gpu_request *on_gpu = gpu_request_make(req);
        CHECK(request_draw(cpu, req, host) == GUMBEL_OK, "%s", host->error.message);
        gpu_request_draw(on_gpu, 0, device);
        compare_request(host, device, "a draft vocabulary");
        outcome_free(host);
        outcome_free(device);
        gpu_request_free(on_gpu);
        request_free(req);
        free(ids);
    }
}

/* ---------------------------------------------------------------------------------- graphs ---- */

/* Replays read the table again. */
static void tables_in_graphs(void)
{
    for (int i = 0; i < 40; i++) {
        int32_t *ids;
        uint64_t random = 500 + (uint64_t)i;
        request *req = make_table_request(i, 0, &ids);
        gpu_request *on_gpu = gpu_request_make(req);
        outcome *host = request_outcome(req), *device = request_outcome(req);
        gpu_replay captured = gpu_request_capture(on_gpu, 0, host);
        for (int replay = 0; replay < 3; replay++) {
            CHECK(request_draw(cpu, req, host) == GUMBEL_OK, "%s", host->error.message);
            gpu_replay_draw(&captured, device);
            compare_request(host, device, request_describe(&req->plan));
            for (int64_t k = 0; k < req->plan.vocab; k++)
                ids[k] = (int32_t)random_below(&random, 1u << 30);
            gpu_put((void *)(uintptr_t)on_gpu->req.sampling.token_ids, ids,
                    (size_t)req->plan.vocab * sizeof *ids);
        }
        gpu_replay_free(&captured);
        outcome_free(host);
        outcome_free(device);
        gpu_request_free(on_gpu);
        request_free(req);
        free(ids);
    }
}

/* ------------------------------------------------------------------------ ids out of range ---- */

/* Rows with invalid ids are drawn as if their logits were -inf, also if they are the largest. */
static void ids_out_of_range(void)
{
    static const int32_t invalid[] = {-1, INT32_MIN, INT32_MAX};
    for (int i = 0; i < 60; i++) {
        uint64_t random = 900 + (uint64_t)i;
        request_plan plan = request_plan_at_random(i, 0);
        table_adapt_plan(&plan);
        plan.dtype = GUMBEL_FLOAT32;
        plan.logprobs_of = GUMBEL_PROCESSED; /* raw ones include masked tokens */
        plan.scale = 0;
        request *req = request_make(&plan, cpu);
        int32_t *ids = table_make((table_kind)(i % TABLE_KINDS), plan.vocab, 90000, &random);
        int32_t *there = make_zeroed((size_t)plan.vocab, sizeof *there);
        const gumbel_tensor *l = &req->logits.logits;
        const int64_t stride = l->stride ? l->stride : l->cols;
        outcome *host = request_outcome(req), *device = request_outcome(req);
        memcpy(there, ids, (size_t)plan.vocab * sizeof *there);
        for (int64_t k = 0; k < plan.vocab; k++)
            there[k] = random_below(&random, 3) ? ids[k] : invalid[k % 3];
        request ours = *req;
        ours.sampling.token_ids = there;
        gpu_request *on_gpu = gpu_request_make(&ours);
        for (int64_t at = 0; at < plan.batch * plan.vocab; at++)
            if (there[at % plan.vocab] != ids[at % plan.vocab])
                ((float *)(uintptr_t)l->data)[at / plan.vocab * stride + at % plan.vocab] =
                    -INFINITY;
        req->sampling.token_ids = ids;
        CHECK(request_draw(cpu, req, host) == GUMBEL_OK, "%s", host->error.message);
        gpu_request_draw(on_gpu, 0, device);
        compare_request(host, device, request_describe(&plan));
        gpu_request_free(on_gpu);
        outcome_free(host);
        outcome_free(device);
        request_free(req);
        free(ids);
        free(there);
    }
}

/* -------------------------------------------------------------------------- prepared noise ---- */

static void table_noise_ahead(void)
{
    for (int i = 0; i < 12; i++) {
        uint64_t random = 40 + (uint64_t)i;
        const int64_t batch = 1 + random_below(&random, 5),
                      vocab = 1 + random_below(&random, 40000);
        const problem_plan plan = {.batch = batch, .vocab = 1, .hidden_size = 1, .seed = 7};
        problem *host = problem_make(&plan), *device = gpu_problem(host);
        gumbel_sampling how = host->sampling, ours = device->sampling;
        int32_t *ids = table_make((table_kind)(i % TABLE_KINDS), vocab, 2 * vocab, &random);
        how.num_samples = ours.num_samples = 1 + i % 2;
        const size_t bytes = (size_t)(batch * how.num_samples * vocab) * sizeof(float);
        how.token_ids = ids;
        ours.token_ids = gpu_copy(ids, (size_t)vocab * sizeof *ids);
        float *expected = table_noise(&how, batch, vocab);
        float *there = gpu_make(bytes), *found = make_zeroed(1, bytes);
        make_noise(gpu, NULL, &ours, batch, 0, vocab, there, 0);
        GPU(cuCtxSynchronize);
        gpu_fetch(found, there, bytes);
        CHECK(memcmp(found, expected, bytes) == 0, "table %d", i);
        draws_compared += batch * how.num_samples;
        gpu_free((void *)(uintptr_t)ours.token_ids);
        gpu_free(there);
        free(expected);
        free(found);
        free(ids);
        gpu_problem_free(device);
        problem_free(host);
    }
}

/* For compute-sanitizer; the second for racecheck, which takes longest. */
static void tables_small(void) { check_tables(10); }
static void tables_few(void) { check_tables(2); }

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"tables", tables},
        {"draft_vocabulary", draft_vocabulary},
        {"tables_in_graphs", tables_in_graphs},
        {"ids_out_of_range", ids_out_of_range},
        {"table_noise_ahead", table_noise_ahead},
        {"tables_small", tables_small},
        {"tables_few", tables_few},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
