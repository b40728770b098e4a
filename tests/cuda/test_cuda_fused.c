/* SPDX-License-Identifier: Apache-2.0
 *
 * The fused draw on a GPU, by tuned and naive kernels, compared with the CPU.
 */
#include "cuda_support.h"

#include "problem_plans.h"

#include <string.h>

/* A plan that the tuned kernels support. */
static problem_plan tuned(int64_t batch, int64_t vocab, int64_t hidden_size)
{
    return (problem_plan){
        .batch = batch,
        .vocab = vocab,
        .hidden_size = hidden_size,
        .weight_dtype = batch % 2 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT16,
        .hidden_dtype = batch % 2 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT16,
        .temperature = -0.8f,
        .seed = (uint64_t)(batch * 1000003 + vocab * 101 + hidden_size),
    };
}

static void batches(void)
{
    static const int64_t larger[] = {96, 128, 192, 256, 300, 512};
    for (int64_t batch = 1; batch <= 80; batch++) {
        problem_plan plan = tuned(batch, 1040, 72);
        check_plan(&plan);
    }
    for (int i = 0; i < 6; i++) {
        problem_plan plan = tuned(larger[i], 2064, 136);
        check_plan(&plan);
    }
}

static void vocabularies(void)
{
    for (int64_t vocab = 1; vocab <= 160; vocab++) {
        problem_plan plan = tuned(3, vocab, 24);
        check_plan(&plan);
    }
    /* Every residue of a tile of 128 that is a multiple of 16, then a real vocabulary. */
    for (int64_t vocab = 16; vocab <= 4096; vocab += 16 * 13) {
        problem_plan plan = tuned(2 + vocab % 7, vocab, 64);
        check_plan(&plan);
    }
    for (int64_t vocab = 151936 - 16; vocab <= 151936; vocab += 16) {
        problem_plan plan = tuned(5, vocab, 64);
        check_plan(&plan);
    }
}

static void hidden_sizes(void)
{
    for (int64_t size = 1; size <= 20; size++) {
        problem_plan plan = tuned(3, 272, size);
        check_plan(&plan);
    }
    for (int64_t size = 24; size <= 1100; size += 8 * 7) {
        problem_plan plan = tuned(9, 528, size);
        check_plan(&plan);
    }
}

/* Pairs of CTAs multicast hidden states, more than the ring holds, also when one CTA has no more
 * tiles: even and odd numbers of tiles, and more than run at once. */
static void clusters(void)
{
    static const int64_t rows[] = {65, 100, 128, 300};
    for (int i = 0; i < 4; i++) {
        problem_plan plan = tuned(rows[i], 272 + 128 * i, 1544);
        check_plan(&plan);
    }
    problem_plan plan = tuned(100, 128 * 135 - 16, 1544);
    check_invariance(&plan, OUTCOME_TOKENS | OUTCOME_SCORES);
    check_invariance(&plan, OUTCOME_ALL);
}

static void dtypes_and_strides(void)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    static const int64_t gaps[] = {0, 1, 3, 8, 40};
    for (int i = 0; i < STRIDED_PLANS; i++) {
        problem_plan plan = plan_strided(tuned(4, 400, 40), dtypes, gaps, i);
        check_plan(&plan);
    }
}

/* Scales, soft-caps, bias, samples, shards, domains, as in the CPU's tests. */
static void random_plans(void)
{
    for (int i = 0; i < 300; i++) {
        problem_plan plan = plan_at_random(i);
        check_plan(&plan);
        plan.vocab = (plan.vocab + 15) / 16 * 16;
        plan.hidden_size = (plan.hidden_size + 7) / 8 * 8;
        plan.weight_gap = plan.hidden_gap = 8 * (i % 3);
        plan.first_token = i % 2 ? 0 : 4 * (1 + i);
        plan.vocab_size = i % 3 ? 0 : plan.first_token + plan.vocab - i % 16;
        plan.hidden_dtype = plan.weight_dtype = i % 2 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT16;
        check_plan(&plan);
    }
}

static void many_samples(void)
{
    static const int32_t samples[] = {2, 3, 8, 31, 32, 33, 100};
    for (int i = 0; i < 7; i++)
        for (int64_t batch = 1; batch <= 90; batch += 37) {
            problem_plan plan = tuned(batch, 1552, 64);
            plan.samples = samples[i];
            check_plan(&plan);
        }
}

/* One seed for all rows is mixed with the row's index, also in the second launch of a large
 * batch. */
static void shared_parameters(void)
{
    problem_plan plan = tuned(301, 1024, 64);
    problem *host = problem_make(&plan), *device = gpu_problem(host);
    outcome *theirs = outcome_make(plan.batch, 1), *ours = outcome_make(plan.batch, 1);
    for (int shared = 0; shared < 2; shared++) {
        problem *const both[] = {host, device};
        for (int i = 0; i < 2; i++) {
            gumbel_sampling *s = &both[i]->sampling;
            s->temperature.stride = s->seed.stride = s->position.stride = GUMBEL_SAME;
            s->first_sample.stride = GUMBEL_SAME;
            if (shared) {
                s->seed = (gumbel_row_u64){NULL, 0};
                s->temperature = (gumbel_row_f32){NULL, 0};
            }
        }
        draw(cpu, &host->head, &host->sampling, theirs);
        gpu_draw(&device->head, NULL, &device->sampling, OUTCOME_TOKENS, ours);
        compare(theirs, ours, OUTCOME_TOKENS, 0, problem_describe(&plan));
        CHECK(memcmp(ours->tokens, ours->tokens + 150, 150 * sizeof(int32_t)) != 0,
              "rows draw alike");
    }
    outcome_free(theirs);
    outcome_free(ours);
    gpu_problem_free(device);
    problem_free(host);
}

static void shards(void)
{
    static const int64_t cuts[] = {64, 256, 640, 0};
    problem_plan plan = tuned(7, 1600, 64);
    plan.samples = 3;
    check_shards(&plan, cuts, 64);
}

static void batch_invariance(void)
{
    problem_plan plan = tuned(520, 4112, 128);
    check_invariance(&plan, OUTCOME_TOKENS | OUTCOME_SCORES);
    check_invariance(&plan, OUTCOME_ALL);
}

/* The product without a draw, and a shard of padding. */
static void odd_calls(void)
{
    problem_plan plan = tuned(4, 512, 64);
    plan.first_token = 1024;
    plan.vocab_size = 1000;
    problem *host = problem_make(&plan), *device = gpu_problem(host);
    outcome *ours = outcome_make(plan.batch, 1);
    gpu_draw(&device->head, NULL, &device->sampling, OUTCOME_ALL, ours);
    for (int64_t b = 0; b < plan.batch; b++)
        CHECK(ours->status[b] == GUMBEL_ROW_EMPTY && ours->tokens[b] == -1, "row %d: status %d",
              (int)b, (int)ours->status[b]);
    size_t bytes;
    gumbel_error error = {"", ""};
    const gumbel_limits limits = {
        .struct_size = sizeof limits, .batch = plan.batch, .hidden_size = plan.hidden_size};
    CHECK(gumbel_workspace_most(gpu, &limits, &bytes, &error) == GUMBEL_OK, "%s", error.message);
    void *workspace = gpu_hostile(bytes);
    device->head.vocab_size = 0;
    CHECK(gumbel_multiply(gpu, NULL, &device->head, workspace, bytes, &error) == GUMBEL_OK,
          "%s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_free(workspace);
    outcome_free(ours);
    gpu_problem_free(device);
    problem_free(host);
}

/* Small problems for every kernel, for sanitizers. */
static void fused_small(void)
{
    for (int i = 0; i < 6; i++) {
        static const int64_t batches_of[] = {1, 9, 17, 40, 100, 200};
        problem_plan plan = tuned(batches_of[i], 272, i == 4 ? 520 : 72);
        plan.samples = i == 0 ? 3 : 1;
        plan.soft_cap = i == 1 ? 20 : 0;
        plan.bias_dtype = i == 2 ? GUMBEL_BFLOAT16 : 0;
        check_plan(&plan);
    }
    problem_plan plan = plan_at_random(3);
    check_plan(&plan);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"batches", batches},
        {"vocabularies", vocabularies},
        {"hidden_sizes", hidden_sizes},
        {"clusters", clusters},
        {"dtypes_and_strides", dtypes_and_strides},
        {"random_plans", random_plans},
        {"many_samples", many_samples},
        {"shared_parameters", shared_parameters},
        {"shards", shards},
        {"batch_invariance", batch_invariance},
        {"odd_calls", odd_calls},
        {"fused_small", fused_small},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
