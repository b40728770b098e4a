/* SPDX-License-Identifier: Apache-2.0
 *
 * Best scores of a draw on the GPU match the CPU's: from logits, and from a head's logits computed
 * by the CPU.
 */
#include "cuda_requests.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A list of `most` entries a row, in host memory or on the GPU. */
typedef struct best_lists {
    int32_t *ids;
    float *scores;
} best_lists;

/* Draw on the CPU and on the GPU, and CHECK that tokens and lists are equal. `alone`: the GPU
 * writes scores without ids. */
static void check_lists(const request *req, int32_t most, int alone)
{
    const char *what = request_describe(&req->plan);
    size_t rows = (size_t)req->plan.batch, listed = rows * (size_t)most;
    best_lists host = {make_zeroed(listed, 4), make_zeroed(listed, 4)};
    best_lists found = {make_zeroed(listed, 4), make_zeroed(listed, 4)};
    outcome *drawn = request_outcome(req);
    int32_t *tokens = make_zeroed(rows, sizeof *tokens);
    gpu_request *generated = gpu_request_make(req);
    gumbel_output there = {.struct_size = sizeof there,
                           .tokens = gpu_make(rows * 4),
                           .best_ids = alone ? NULL : gpu_make(listed * 4),
                           .best_scores = gpu_make(listed * 4),
                           .num_best = most};
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    drawn->output.best_ids = host.ids;
    drawn->output.best_scores = host.scores;
    drawn->output.num_best = most;
    CHECK(request_draw(cpu, req, drawn) == GUMBEL_OK, "%s", drawn->error.message);
    CHECK(gumbel_workspace_size(gpu, NULL, &generated->req.logits, &generated->req.sampling, &there,
                                &bytes, &error) == GUMBEL_OK,
          "%s: %s", what, error.message);
    void *workspace = gpu_hostile(bytes);
    CHECK(gumbel_sample_logits(gpu, NULL, &generated->req.logits, &generated->req.sampling, &there,
                               workspace, bytes, &error) == GUMBEL_OK,
          "%s: %s", what, error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(tokens, there.tokens, rows * 4);
    if (!alone)
        gpu_fetch(found.ids, there.best_ids, listed * 4);
    gpu_fetch(found.scores, there.best_scores, listed * 4);
    CHECK(memcmp(tokens, drawn->tokens, rows * 4) == 0, "%s", what);
    CHECK(alone || memcmp(found.ids, host.ids, listed * 4) == 0, "%s", what);
    for (size_t i = 0; i < listed; i++)
        CHECK(
            found.scores[i] == host.scores[i] || (isnan(found.scores[i]) && isnan(host.scores[i])),
            "%s: place %zu: %a, not %a", what, i, (double)found.scores[i], (double)host.scores[i]);
    draws_compared += (int64_t)listed;
    gpu_free(workspace);
    gpu_free(there.tokens);
    gpu_free(there.best_ids);
    gpu_free(there.best_scores);
    gpu_request_free(generated);
    outcome_free(drawn);
    free(tokens);
    free(host.ids);
    free(host.scores);
    free(found.ids);
    free(found.scores);
}

static void check_requests(int first, int count)
{
    for (int index = first; index < first + count; index++) {
        request_plan plan = request_plan_at_random(index, index % 3 == 0);
        plan.samples = 1;
        plan.history = index % 2;
        request *req = request_make(&plan, cpu);
        check_lists(req, 1 + index % GUMBEL_BEST_MAX, index % 4 == 1);
        request_free(req);
    }
}

static void lists(void) { check_requests(0, 150); }

static void lists_small(void) { check_requests(0, 8); }

static void lists_few(void) { check_requests(5, 2); }

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"best_lists", lists},
        {"best_small", lists_small},
        {"best_few", lists_few},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
