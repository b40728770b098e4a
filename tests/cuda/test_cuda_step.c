/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls around a decode step on a GPU: noise computed ahead has the CPU's bits and gives the
 * outcome of noise on the fly; positions and the ring advance.
 */
#include "cuda_support.h"
#include "problem_plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------- noise ---- */

/* Padding of a noise buffer: floats before it, and between its rows. */
typedef struct noise_shape {
    int64_t batch, first_token, count, shift, gap;
    int32_t samples;
} noise_shape;

/* A sampling with its parameters in device memory, from a problem's. */
static gumbel_sampling sampling_of(const problem *device, int32_t samples)
{
    gumbel_sampling sampling = device->sampling;
    sampling.num_samples = samples;
    return sampling;
}

/* All noise is written, and nothing before, between or after it. */
static void check_noise(noise_shape shape, int index)
{
    problem_plan plan = {.batch = shape.batch, .vocab = 1, .hidden_size = 1, .seed = 7};
    plan.first_sample = UINT32_MAX;
    problem *host = problem_make(&plan), *device = gpu_problem(host);
    gumbel_sampling on_host = sampling_of(host, shape.samples);
    gumbel_sampling on_gpu = sampling_of(device, shape.samples);
    if (index % 2)
        on_host.seed.stride = on_gpu.seed.stride = GUMBEL_SAME;
    on_host.domain = on_gpu.domain = (uint32_t)index;
    int64_t stride = shape.count + shape.gap;
    int64_t length = 2 * shape.shift + shape.batch * shape.samples * stride;
    size_t bytes = (size_t)length * sizeof(float);
    float *wanted = make_zeroed((size_t)length, sizeof(float));
    float *found = make_zeroed((size_t)length, sizeof(float));
    memset(wanted, 0xA7, bytes);
    float *generated = gpu_copy(wanted, bytes);
    make_noise(cpu, NULL, &on_host, shape.batch, shape.first_token, shape.count,
               wanted + shape.shift, stride);
    make_noise(gpu, NULL, &on_gpu, shape.batch, shape.first_token, shape.count,
               generated + shape.shift, stride);
    GPU(cuCtxSynchronize);
    gpu_fetch(found, generated, bytes);
    for (int64_t i = 0; i < length; i++)
        if (!CHECK(memcmp(&found[i], &wanted[i], sizeof(float)) == 0,
                   "shape %d: element %lld of %lld is %a, on the CPU %a", index, (long long)i,
                   (long long)length, (double)found[i], (double)wanted[i]))
            break;
    draws_compared += shape.batch * shape.samples;
    free(wanted);
    free(found);
    gpu_free(generated);
    gpu_problem_free(device);
    problem_free(host);
}

static void noise(void)
{
    const int64_t end = INT64_C(1) << 31;
    const noise_shape shapes[] = {
        {1, 0, 151936, 0, 0, 1},     {3, 0, 4096, 0, 0, 2},      {3, 1, 4097, 0, 7, 2},
        {2, 1000003, 9001, 1, 0, 3}, {5, end - 33, 33, 3, 1, 1}, {300, 64, 100, 0, 4, 2},
        {2, 4095, 8192, 2, 5, 1},
    };
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        check_noise(shapes[i], i);
    for (int64_t count = 1; count <= 24; count++)
        check_noise((noise_shape){2, count % 7, count, count % 3, count % 5, 2}, 10);
    /* 2^26 words, 4 of them with further bits. */
    check_noise((noise_shape){1, 0, 1 << 26, 0, 0, 1}, 11);
}

/* ---------------------------------------------------------------------------- noise ahead ---- */

/* Draw without noise, then with noise computed ahead after seed and position are erased. */
static void check_ahead(const problem_plan *plan, gumbel_dtype logits_dtype, int64_t gap)
{
    problem *host = problem_make(plan), *device = gpu_problem(host);
    outcome *wanted = outcome_make(plan->batch, plan->samples);
    outcome *found = outcome_make(plan->batch, plan->samples);
    gumbel_logits logits = {0}, on_gpu = {0};
    int64_t stride = plan->vocab + gap;
    float *generated = gpu_make((size_t)(plan->batch * plan->samples * stride) * sizeof(float));
    gumbel_sampling ahead = device->sampling;
    if (logits_dtype) {
        logits = make_logits(host, logits_dtype, 3);
        on_gpu = gpu_logits(&logits);
    }
    const gumbel_head *head = logits_dtype ? NULL : &device->head;
    make_noise(gpu, NULL, &device->sampling, plan->batch, plan->first_token, plan->vocab, generated,
               stride);
    ahead.noise = generated;
    ahead.noise_stride = stride;
    ahead.seed = ahead.position = (gumbel_row_u64){NULL, 0};
    ahead.first_sample = (gumbel_row_u32){NULL, 0};
    ahead.domain = 0;
    gpu_draw(head, &on_gpu, &device->sampling, OUTCOME_ALL, wanted);
    gpu_draw(head, &on_gpu, &ahead, OUTCOME_ALL, found);
    if (head)
        compare_ahead(wanted, found, problem_describe(plan));
    else
        CHECK(outcome_same(wanted, 0, found, OUTCOME_ALL, problem_describe(plan)), "noise ahead");
    draws_compared += plan->batch * plan->samples;
    outcome_free(wanted);
    outcome_free(found);
    if (logits_dtype) {
        gpu_free((void *)(uintptr_t)on_gpu.logits.data);
        free((void *)(uintptr_t)logits.logits.data);
    }
    gpu_free(generated);
    gpu_problem_free(device);
    problem_free(host);
}

/* Every kernel that draws. */
static void noise_ahead(void)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    for (int i = 0; i < 60; i++) {
        problem_plan plan = i % 2 ? plan_by_vocab(2 * i) : plan_at_random(i);
        plan.weight_dtype = GUMBEL_FLOAT32; /* served by the naive kernel */
        plan.samples = plan.samples ? plan.samples : 1;
        check_ahead(&plan, 0, i % 3);
        check_ahead(&plan, dtypes[i % 3], i % 5);
    }
    problem_plan long_rows = {.batch = 3, .vocab = 50021, .hidden_size = 1, .samples = 2};
    check_ahead(&long_rows, GUMBEL_FLOAT32, 1);
    for (int64_t batch = 1; batch <= 256; batch += 1 + batch / 3) {
        problem_plan tiled = {.batch = batch,
                              .vocab = 1024 + 16 * batch,
                              .hidden_size = 64,
                              .samples = batch <= 64 ? 2 : 1,
                              .temperature = -0.8f,
                              .weight_dtype = GUMBEL_BFLOAT16,
                              .hidden_dtype = GUMBEL_BFLOAT16};
        check_ahead(&tiled, 0, batch % 3);
    }
}

/* -------------------------------------------------------------------------------- advance ---- */

/* A step on the GPU and on the CPU: the same ring and positions. `apart` 0: one position. */
static void check_advance(int64_t batch, int32_t samples, int64_t length, int64_t apart)
{
    int64_t tokens = batch * samples, positions = apart ? batch * apart : 1;
    size_t ring_bytes = (size_t)(length * tokens) * sizeof(int32_t);
    size_t position_bytes = (size_t)positions * sizeof(uint64_t);
    int32_t *drawn = make_zeroed((size_t)tokens, sizeof *drawn);
    int32_t *ring = make_zeroed((size_t)(length * tokens), sizeof *ring);
    int32_t *found = make_zeroed((size_t)(length * tokens), sizeof *found);
    uint64_t *position = make_zeroed((size_t)positions, sizeof *position);
    uint64_t *moved = make_zeroed((size_t)positions, sizeof *moved);
    uint64_t random = (uint64_t)tokens;
    for (int64_t i = 0; i < tokens; i++)
        drawn[i] = (int32_t)random_below(&random, 1000) - 1;
    for (int64_t i = 0; i < positions; i++)
        position[i] = i % 3 ? random_below(&random, 100) : UINT64_MAX - 1;
    gumbel_step step = {.struct_size = sizeof step,
                        .batch = batch,
                        .num_samples = samples,
                        .tokens = drawn,
                        .position = position,
                        .position_stride = apart ? apart : GUMBEL_SAME,
                        .ring = ring,
                        .ring_length = length};
    gumbel_step there = step;
    there.tokens = gpu_copy(drawn, (size_t)tokens * sizeof *drawn);
    there.position = gpu_copy(position, position_bytes);
    there.ring = gpu_copy(ring, ring_bytes);
    for (int i = 0; i < 3; i++) {
        CHECK(gumbel_advance(cpu, NULL, &step, NULL) == GUMBEL_OK, "on the CPU");
        CHECK(gumbel_advance(gpu, NULL, &there, NULL) == GUMBEL_OK, "on the GPU");
    }
    GPU(cuCtxSynchronize);
    gpu_fetch(found, there.ring, ring_bytes);
    gpu_fetch(moved, there.position, position_bytes);
    CHECK(memcmp(found, ring, ring_bytes) == 0, "ring, B %d S %d", (int)batch, (int)samples);
    CHECK(memcmp(moved, position, position_bytes) == 0, "positions, B %d S %d", (int)batch,
          (int)samples);
    draws_compared += 3 * tokens;
    gpu_free((void *)(uintptr_t)there.tokens);
    gpu_free(there.position);
    gpu_free(there.ring);
    free(drawn);
    free(ring);
    free(found);
    free(position);
    free(moved);
}

static void advance(void)
{
    for (int64_t batch = 1; batch <= 1000; batch += batch < 5 ? 1 : 83)
        for (int64_t apart = 0; apart <= 2; apart++)
            check_advance(batch, 1 + (int32_t)batch % 4, 1 + batch % 6, apart);
}

/* For sanitizers. */
static void step_small(void)
{
    check_noise((noise_shape){2, 5, 5000, 1, 3, 2}, 20);
    check_advance(300, 2, 3, 1);
    check_advance(300, 2, 3, 0);
    problem_plan plan = plan_by_vocab(100);
    plan.weight_dtype = GUMBEL_FLOAT32;
    check_ahead(&plan, 0, 1);
    check_ahead(&plan, GUMBEL_FLOAT16, 1);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"noise", noise},     {"noise_ahead", noise_ahead},
        {"advance", advance}, {"step_small", step_small},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
