/* SPDX-License-Identifier: Apache-2.0
 *
 * GUMBEL_MATH_FAST on a GPU changes only log-normalisers of draws from logits, slightly.
 */
#include "cuda_requests.h"
#include "plans.h"

#include <math.h>
#include <stdlib.h>

/* Equal tokens and scores; log-normalisers and log-probabilities within the documented error. */
static void fast_logits(void)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    for (int i = 0; i < 12; i++) {
        problem_plan plan = {.batch = 1 + i % 5,
                             .vocab = 700 * (i + 1) + i,
                             .hidden_size = 1,
                             .soft_cap = i == 3 ? 10.0f : 0.0f,
                             .temperature = -1,
                             .seed = 40 + (uint64_t)i};
        problem *host = problem_make(&plan), *device = gpu_problem(host);
        gumbel_logits logits = make_logits(host, dtypes[i % 3], i), on_gpu = gpu_logits(&logits);
        outcome *exact = outcome_make(plan.batch, 1), *fast = outcome_make(plan.batch, 1);
        gumbel_sampling sampling = device->sampling;
        gpu_draw(NULL, &on_gpu, &sampling, OUTCOME_ALL, exact);
        sampling.math = GUMBEL_MATH_FAST;
        gpu_draw(NULL, &on_gpu, &sampling, OUTCOME_ALL, fast);
        CHECK(outcome_same(exact, 0, fast, OUTCOME_TOKENS | OUTCOME_SCORES, "fast"), "plan %d", i);
        for (int64_t b = 0; b < plan.batch; b++) {
            double lse = (double)exact->lse[b], off = fabs(lse - (double)fast->lse[b]);
            double apart = fabs((double)exact->logprobs[b] - (double)fast->logprobs[b]);
            double most = 1e-6 * fmax(1, fabs(lse));
            CHECK(off <= most, "plan %d row %d: off by %g", i, (int)b, off);
            CHECK(apart <= 2 * most, "plan %d row %d: logprob off by %g", i, (int)b, apart);
        }
        draws_compared += plan.batch;
        outcome_free(exact);
        outcome_free(fast);
        gpu_free((void *)(uintptr_t)on_gpu.logits.data);
        free((void *)(uintptr_t)logits.logits.data);
        gpu_problem_free(device);
        problem_free(host);
    }
}

/* From a head every output has the same bits; with noise computed ahead, tokens and scores do. */
static void fast_head(void)
{
    for (int i = 0; i < 40; i++) {
        problem_plan plan = plan_at_random(i);
        problem *host = problem_make(&plan), *device = gpu_problem(host);
        outcome *exact = outcome_make(plan.batch, host->plan.samples);
        outcome *fast = outcome_make(plan.batch, host->plan.samples);
        gumbel_sampling sampling = device->sampling;
        size_t draws = (size_t)(plan.batch * host->plan.samples);
        float *generated = gpu_make(draws * (size_t)plan.vocab * sizeof *generated);
        gpu_draw(&device->head, NULL, &sampling, OUTCOME_ALL, exact);
        sampling.math = GUMBEL_MATH_FAST;
        gpu_draw(&device->head, NULL, &sampling, OUTCOME_ALL, fast);
        CHECK(outcome_same(exact, 0, fast, OUTCOME_ALL, "fast"), "plan %d", i);
        make_noise(gpu, NULL, &sampling, plan.batch, plan.first_token, plan.vocab, generated, 0);
        sampling.noise = generated;
        gpu_draw(&device->head, NULL, &sampling, OUTCOME_ALL, fast);
        compare_ahead(exact, fast, problem_describe(&host->plan));
        draws_compared += 2 * (int64_t)draws;
        gpu_free(generated);
        outcome_free(exact);
        outcome_free(fast);
        gpu_problem_free(device);
        problem_free(host);
    }
}

/* Request only tokens, so that rows can be drawn before they are truncated. */
static void draw_tokens(gumbel_output *output)
{
    output->lse = output->logprobs = output->top_logprobs = NULL;
    output->ranks = output->kept = output->top_ids = NULL;
    output->num_top = 0;
}

/* Equal tokens and scores of requests from logits and from a head: a top_p only, several rules, and
 * edits only. */
static void fast_requests(void)
{
    for (int i = 0; i < 48; i++) {
        request_plan plan = {.batch = 1 + 5 * (i % 8),
                             .vocab = 3008 + 16 * i,
                             .hidden_size = 64,
                             .dtype = GUMBEL_FLOAT32,
                             .truncation = i % 3 != 2,
                             .usual = 1,
                             .cuts = i % 3 ? REQUEST_TOP_K | REQUEST_TOP_P : REQUEST_TOP_P,
                             .transforms = i % 3 == 2,
                             .history = 1,
                             .samples = 1,
                             .seed = 4000 + (uint64_t)i};
        request *req = request_make(&plan, cpu);
        gpu_request *on_gpu = gpu_request_make(req);
        outcome *exact = request_outcome(req), *fast = request_outcome(req);
        if (i % 2)
            draw_tokens(&exact->output), draw_tokens(&fast->output);
        for (int fused = 0; fused < 2; fused++) {
            on_gpu->req.sampling.math = GUMBEL_MATH_EXACT;
            gpu_request_draw(on_gpu, fused, exact);
            on_gpu->req.sampling.math = GUMBEL_MATH_FAST;
            gpu_request_draw(on_gpu, fused, fast);
            CHECK(outcome_same(exact, 0, fast, OUTCOME_TOKENS | OUTCOME_SCORES, "fast"),
                  "request %d, %s", i, fused ? "fused" : "from logits");
        }
        draws_compared += 2 * plan.batch;
        outcome_free(exact);
        outcome_free(fast);
        gpu_request_free(on_gpu);
        request_free(req);
    }
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"fast_logits", fast_logits},
        {"fast_head", fast_head},
        {"fast_requests", fast_requests},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
