/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows drawn by programs on a GPU, compared with the CPU through the public API: random programs on
 * usual and adversarial rows, from logits and from a head; captured graphs.
 */
#include "cuda_requests.h"
#include "random_programs.h"

#include <stdlib.h>

/* Draws a plan's rows by random programs on both devices. */
static void compare_plan(const request_plan *plan, int fused, int shape, uint64_t *random)
{
    request *req = request_make(plan, cpu);
    random_programs *programs = make_zeroed(1, sizeof *programs);
    const gumbel_tensor *t = &req->logits.logits;
    random_programs_set(programs, req, random);
    for (int64_t b = 0; b < plan->batch && shape >= 0; b++)
        for (int64_t i = 0; i < plan->vocab; i++)
            ((float *)t->data)[b * t->stride + i] = request_hostile_logit(shape, i, plan->vocab);
    compare_requests(req, fused);
    free(programs);
}

static void check_plans(int count, int step)
{
    uint64_t random = 11;
    for (int i = 0; i < count; i += step) {
        request_plan plan = request_plan_at_random(i, 0);
        plan.truncation = 1;
        compare_plan(&plan, 0, -1, &random);
    }
}

static void programs_plans(void) { check_plans(400, 1); }
static void programs_few(void) { check_plans(130, 26); } /* for compute-sanitizer */

/* Heads of mixed dtypes, whose products are summed in the CPU's order. */
static void programs_from_hidden(void)
{
    uint64_t random = 12;
    for (int i = 0; i < 60; i++) {
        request_plan plan = request_plan_at_random(i, 1);
        plan.truncation = 1;
        request *req = request_make(&plan, cpu);
        const int mixed = req->head.weight.dtype != req->head.hidden.dtype;
        request_free(req);
        if (mixed)
            compare_plan(&plan, 1, -1, &random);
    }
}

/* Vocabularies of engines, on rows whose values defeat the first guesses of searches. */
static void programs_large(void)
{
    uint64_t random = 13;
    for (int i = 0; i < 48; i++) {
        request_plan plan = {.batch = i % 3 ? 3 : 40,
                             .vocab = i % 2 ? 151936 - i : 32000 + i,
                             .num_top = i % 4 == 1 ? 20 : 0,
                             .samples = 1 + i % 2,
                             .dtype = GUMBEL_FLOAT32,
                             .ties = (gumbel_ties)(i % 2),
                             .truncation = 1,
                             .kind = 1 + ROW_GAUSSIAN,
                             .seed = 300 + (uint64_t)i};
        compare_plan(&plan, 0, i % 3 == 2 ? i % REQUEST_SHAPES : -1, &random);
    }
}

/* Batches that one CTA a row serves from few blocks: most programs begin with top_k or min_p. */
static void programs_from_blocks(void)
{
    uint64_t random = 15;
    for (int i = 0; i < 40; i++) {
        request_plan plan = {.batch = 17 + i % 4 * 21,
                             .vocab = i % 2 ? 151936 - i : 9000 + 1000 * i,
                             .num_top = i % 4 == 1 ? 20 : 0,
                             .samples = 1 + i % 2,
                             .dtype = (gumbel_dtype)(1 + i % 3),
                             .ties = (gumbel_ties)(i / 2 % 2),
                             .truncation = 1,
                             .transforms = i % 5 == 4,
                             .history = 1,
                             .kind = 1 + ROW_GAUSSIAN,
                             .seed = 500 + (uint64_t)i};
        compare_plan(&plan, 0, -1, &random);
    }
}

/* A captured draw, replayed, reads the row parameters again. */
static void programs_graph(void)
{
    uint64_t random = 14;
    for (int i = 0; i < 8; i++) {
        request_plan plan = {.batch = 5, .vocab = 9000, .truncation = 1, .seed = 40 + (uint64_t)i};
        request *req = request_make(&plan, cpu);
        random_programs *programs = make_zeroed(1, sizeof *programs);
        random_programs_set(programs, req, &random);
        gpu_request *on_gpu = gpu_request_make(req);
        outcome *host = request_outcome(req), *device = request_outcome(req);
        gpu_replay captured = gpu_request_capture(on_gpu, 0, device);
        CHECK(request_draw(cpu, req, host) == GUMBEL_OK, "%s", programs->text);
        for (int replay = 0; replay < 3; replay++) {
            gpu_replay_draw(&captured, device);
            compare_request(host, device, programs->text);
        }
        gpu_replay_free(&captured);
        outcome_free(host);
        outcome_free(device);
        gpu_request_free(on_gpu);
        request_free(req);
        free(programs);
    }
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"programs_plans", programs_plans},
        {"programs_from_hidden", programs_from_hidden},
        {"programs_large", programs_large},
        {"programs_from_blocks", programs_from_blocks},
        {"programs_graph", programs_graph},
        {"programs_few", programs_few},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
