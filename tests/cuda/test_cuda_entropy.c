/* SPDX-License-Identifier: Apache-2.0
 *
 * Entropies on a GPU have the CPU's bits: from logits of every dtype, from heads, with transforms,
 * truncation and programs, processed and raw, for given tokens; from lists of few tokens; in
 * captured graphs; for few and for many rows, and beside best scores.
 */
#include "cuda_few_outputs.h"
#include "prefixed_programs.h"

#include <math.h>
#include <stdlib.h>

/* The entropy, with other outputs only if `parts` has OUTCOME_MASS. Frees the request. */
static void compare_entropies(request *req, int fused, outcome_parts parts)
{
    gpu_request *on_gpu = gpu_request_make(req);
    outcome *host = request_outcome(req), *device = request_outcome(req);
    outcome *both[] = {host, device};
    const char *what = request_describe(&req->plan);
    for (int i = 0; i < 2; i++) {
        gumbel_output *out = &both[i]->output;
        out->ranks = out->kept = out->top_ids = NULL;
        out->top_logprobs = NULL;
        out->num_top = 0;
        if (!(parts & OUTCOME_MASS))
            out->lse = out->logprobs = out->scores = NULL, out->status = NULL;
    }
    CHECK((fused ? request_draw_fused : request_draw)(cpu, req, host) == GUMBEL_OK, "%s", what);
    gpu_request_draw(on_gpu, fused, device);
    compare_request(host, device, what);
    outcome_free(host);
    outcome_free(device);
    gpu_request_free(on_gpu);
    request_free(req);
}

static void check_requests(int count, int step, int64_t rows_max)
{
    for (int i = 0; i < count; i += step) {
        request_plan plan = request_plan_at_random(i, 0);
        plan.batch = plan.batch < rows_max ? plan.batch : rows_max;
        plan.entropy = 1;
        compare_requests(request_make(&plan, cpu), 0);
        compare_entropies(request_make(&plan, cpu), 0, i % 2 ? OUTCOME_MASS : 0);
    }
}

static void entropies(void) { check_requests(300, 1, INT64_MAX); }

/* For compute-sanitizer; the second for racecheck, which takes a second a row. */
static void entropies_small(void) { check_requests(130, 26, INT64_MAX); }
static void entropies_few(void) { check_requests(130, 26, 1); }

/* Calls without transforms and truncation, whose entropies are computed from the logits: those that
 * a product stores, and those of the caller. */
static void entropies_of_plain_calls(void)
{
    static const int64_t batches[] = {1, 3, 8, 64, 300};
    for (int i = 0; i < 60; i++) {
        request_plan plan = {.batch = batches[i % 5],
                             .vocab = 16 * (1 + i * 37 % 600),
                             .first_token = i % 3 ? 0 : 4 * i,
                             .samples = 1 + i % 2,
                             .dtype = (gumbel_dtype)(1 + i % 3),
                             .scale = i % 7 == 3 ? -0.5f : 1,
                             .soft_cap = i % 4 == 3 ? 30.0f : 0,
                             .logprobs_of = i % 3 == 1 ? GUMBEL_RAW : GUMBEL_PROCESSED,
                             .entropy = 1,
                             .seed = 6000 + (uint64_t)i};
        request *req = request_make(&plan, cpu);
        if (i % 2 == 0) {
            compare_entropies(req, 0, i % 4 ? OUTCOME_MASS : 0);
            continue;
        }
        make_exact_head(req, i % 4 == 1 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 8 + 8 * (i % 12));
        compare_entropies(req, 1, i % 3 ? OUTCOME_MASS : 0);
    }
}

/* Heads whose stored logits are processed. */
static void entropies_of_heads(void)
{
    for (int i = 0; i < 40; i++) {
        request_plan plan = {.batch = 1 + i * 7 % 70,
                             .vocab = 16 * (1 + i * 37 % 600),
                             .samples = 1,
                             .num_top = i % 2 ? 20 : 0,
                             .order = (gumbel_order)(i % REQUEST_ORDERS),
                             .ties = (gumbel_ties)(i % 2),
                             .logprobs_of = i % 4 == 1 ? GUMBEL_RAW : GUMBEL_PROCESSED,
                             .transforms = i % 2,
                             .truncation = 1,
                             .history = 1,
                             .entropy = 1,
                             .seed = 6100 + (uint64_t)i};
        request *req = request_make(&plan, cpu);
        make_exact_head(req, i % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 8 + 8 * (i % 12));
        compare_requests(req, 1);
    }
}

/* Rows that keep few tokens, which one CTA serves from a list, and rows of top_p alone among them;
 * with one survivor, the entropy is 0. */
static void entropies_of_few_tokens(void)
{
    static const int64_t batches[] = {1, 8, 32, 64, 100};
    static const float top_p = 0.95f;
    for (int i = 0; i < 30; i++) {
        request_plan plan = {.batch = batches[i / 2 % 5],
                             .vocab = 65536,
                             .samples = 1 + i / 2 % 2,
                             .num_top = i % 3 ? 0 : 20,
                             .ties = (gumbel_ties)(i / 2 % 2),
                             .truncation = 1,
                             .kind = 1 + ROW_GAUSSIAN,
                             .kept_capacity = i % 3 == 1 ? 64 : 0,
                             .entropy = 1,
                             .seed = 6300 + (uint64_t)i};
        int32_t top_k[100];
        request *req = request_make(&plan, cpu);
        gumbel_truncation *cut = &req->truncation;
        for (int64_t b = 0; b < plan.batch; b++)
            top_k[b] = b % 8 == 3 ? 1 : b % 8 == 5 ? 0 : 50;
        cut->top_k = (gumbel_row_i32){top_k, 0};
        cut->top_p = (gumbel_row_f32){&top_p, GUMBEL_SAME};
        cut->min_p = (gumbel_row_f32){NULL, 0};
        if (i % 2)
            make_exact_head(req, GUMBEL_BFLOAT16, 8);
        if (i % 3)
            compare_requests(req, i % 2);
        else
            compare_entropies(req, i % 2, i % 6 ? OUTCOME_MASS : 0);
    }
}

/* On GPUs with clusters. */
static void entropies_of_programs(void)
{
    uint64_t random = 18;
    for (int i = 0; i < 80; i++) {
        request_plan plan = request_plan_at_random(i, 0);
        prefixed_programs *programs = make_zeroed(1, sizeof *programs);
        plan.truncation = plan.entropy = 1;
        request *req = request_make(&plan, cpu);
        prefixed_programs_set(programs, req, &random);
        compare_requests(req, 0);
        free(programs);
    }
}

/* The vocabulary of a large model, rows of every kind, and hostile ones. */
static void entropies_of_large_rows(void)
{
    for (int i = 0; i < 2 * ROW_ALL_KINDS + REQUEST_SHAPES; i++) {
        request_plan plan = {.batch = 3,
                             .vocab = 151936,
                             .samples = 1,
                             .dtype = GUMBEL_FLOAT32,
                             .logprobs_of = i % 5 == 0 ? GUMBEL_RAW : GUMBEL_PROCESSED,
                             .truncation = i % 2,
                             .kind = 1 + i % ROW_ALL_KINDS,
                             .entropy = 1,
                             .seed = 6200 + (uint64_t)i};
        request *req = request_make(&plan, cpu);
        const gumbel_tensor *t = &req->logits.logits;
        for (int64_t at = 0; i >= 2 * ROW_ALL_KINDS && at < plan.batch * plan.vocab; at++)
            ((float *)t->data)[at / plan.vocab * t->stride + at % plan.vocab] =
                request_hostile_logit(i - 2 * ROW_ALL_KINDS, at % plan.vocab, plan.vocab);
        compare_requests(req, 0);
    }
}

/* Replays of a graph have the same bits as the CPU. */
static void entropies_in_graphs(void)
{
    for (int i = 0; i < 12; i++) {
        request_plan plan = request_plan_at_random(3 * i + 1, 0);
        plan.entropy = 1;
        request *req = request_make(&plan, cpu);
        gpu_request *on_gpu = gpu_request_make(req);
        outcome *host = request_outcome(req), *device = request_outcome(req);
        const char *what = request_describe(&plan);
        CHECK(request_draw(cpu, req, host) == GUMBEL_OK, "%s", what);
        gpu_replay captured = gpu_request_capture(on_gpu, 0, host);
        for (int replay = 0; replay < 2; replay++) {
            outcome_poison(device);
            gpu_replay_draw(&captured, device);
            compare_request(host, device, what);
        }
        gpu_replay_free(&captured);
        outcome_free(host);
        outcome_free(device);
        gpu_request_free(on_gpu);
        request_free(req);
    }
}

/* Best scores are found in rows of z that a launch stores after the entropies. */
static void entropies_beside_best_scores(void)
{
    for (int i = 0; i < 20; i++) {
        request_plan plan = request_plan_at_random(i, 0);
        plan.samples = 1;
        plan.entropy = 1;
        request *req = request_make(&plan, cpu);
        gpu_request *on_gpu = gpu_request_make(req);
        outcome *host = request_outcome(req), *device = request_outcome(req);
        const size_t listed = (size_t)plan.batch * 4;
        int32_t *ids = make_zeroed(listed, sizeof *ids), *on_device = gpu_make(listed * 4);
        const char *what = request_describe(&plan);
        if (req->sampling.given.data) /* not with best scores */
            req->sampling.given.data = on_gpu->req.sampling.given.data = NULL;
        host->output.best_ids = ids;
        host->output.num_best = device->output.num_best = 4;
        CHECK(request_draw(cpu, req, host) == GUMBEL_OK, "%s", what);
        device->output.best_ids = on_device;
        gpu_request_draw(on_gpu, 0, device);
        compare_request(host, device, what);
        int32_t *found = make_zeroed(listed, sizeof *found);
        gpu_fetch(found, on_device, listed * 4);
        for (size_t k = 0; k < listed; k++)
            CHECK(found[k] == ids[k], "%s: best_ids[%zu] is %d, not %d", what, k, (int)found[k],
                  (int)ids[k]);
        gpu_free(on_device);
        free(found);
        free(ids);
        outcome_free(host);
        outcome_free(device);
        gpu_request_free(on_gpu);
        request_free(req);
    }
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"entropies", entropies},
        {"entropies_small", entropies_small},
        {"entropies_few", entropies_few},
        {"entropies_of_plain_calls", entropies_of_plain_calls},
        {"entropies_of_heads", entropies_of_heads},
        {"entropies_of_few_tokens", entropies_of_few_tokens},
        {"entropies_of_programs", entropies_of_programs},
        {"entropies_of_large_rows", entropies_of_large_rows},
        {"entropies_in_graphs", entropies_in_graphs},
        {"entropies_beside_best_scores", entropies_beside_best_scores},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
