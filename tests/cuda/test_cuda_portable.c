/* SPDX-License-Identifier: Apache-2.0
 *
 * The portable rung of the fused draw, compared with the CPU. On Hopper, too, this rung serves the
 * plans below: V is not a multiple of 16, the first token is not a multiple of 4, or the dtype is
 * float32 or mixed.
 */
#include "cuda_support.h"

#include "problem_plans.h"

#include <math.h>

static const gumbel_dtype dtypes[] = {GUMBEL_BFLOAT16, GUMBEL_FLOAT16, GUMBEL_FLOAT32};

/* A plan for the portable rung: dtypes alternate, and the shard begins at an odd token if V suits
 * the Hopper kernel. Rows are multiples of 16 bytes for every D. */
static problem_plan portable(int64_t batch, int64_t vocab, int64_t hidden_size)
{
    problem_plan plan = {
        .batch = batch,
        .vocab = vocab,
        .hidden_size = hidden_size,
        .weight_dtype = dtypes[(batch + vocab + hidden_size) % 3],
        .weight_gap = (8 - hidden_size % 8) % 8,
        .hidden_gap = (8 - hidden_size % 8) % 8 + 8 * (batch % 2),
        .first_token = vocab % 16 ? 0 : 1 + 2 * (batch % 70),
        .temperature = -0.8f,
        .seed = (uint64_t)(batch * 1000003 + vocab * 101 + hidden_size),
    };
    plan.hidden_dtype = plan.weight_dtype;
    return plan;
}

static void portable_batches(void)
{
    static const int64_t larger[] = {96, 128, 192, 256, 300, 512};
    for (int64_t batch = 1; batch <= 80; batch++) {
        problem_plan plan = portable(batch, 1041, 72);
        check_plan(&plan);
    }
    for (int i = 0; i < 6; i++)
        for (int64_t vocab = 2049; vocab < 2052; vocab++) {
            problem_plan plan = portable(larger[i], vocab, 136);
            check_plan(&plan);
        }
}

static void portable_vocabularies(void)
{
    for (int64_t vocab = 1; vocab <= 260; vocab++) {
        problem_plan plan = portable(3, vocab, 24);
        check_plan(&plan);
    }
    /* Splits of one warp tile, of a few, and with a partial tile. */
    for (int64_t vocab = 4001; vocab <= 80000; vocab += 4999) {
        problem_plan plan = portable(2 + vocab % 9, vocab, 16);
        check_plan(&plan);
    }
    for (int64_t vocab = 151936 - 2; vocab <= 151936; vocab++) {
        problem_plan plan = portable(5, vocab, 64);
        check_plan(&plan);
    }
}

static void portable_sizes(void)
{
    for (int64_t size = 1; size <= 140; size++) {
        problem_plan plan = portable(3, 273, size);
        check_plan(&plan);
    }
    for (int64_t size = 150; size <= 2200; size += 41) {
        problem_plan plan = portable(9 + size % 40, 529, size);
        check_plan(&plan);
    }
}

/* Rows that are not multiples of 16 bytes use the naive kernel, as do 16-bit hidden states with
 * weights of another dtype. */
static void portable_strides(void)
{
    static const int64_t gaps[] = {0, 1, 4, 8, 40};
    for (int i = 0; i < STRIDED_PLANS; i++) {
        problem_plan plan = plan_strided(portable(4, 401, 40), dtypes, gaps, i);
        check_plan(&plan);
    }
}

/* Scales, soft-caps, bias, samples, shards, domains, padding. */
static void portable_random(void)
{
    for (int i = 0; i < 300; i++) {
        problem_plan plan = plan_at_random(i);
        plan.vocab |= 1;
        plan.hidden_dtype = plan.weight_dtype = dtypes[i % 3];
        plan.weight_gap = (8 - plan.hidden_size % 8) % 8;
        plan.hidden_gap = plan.weight_gap + 8 * (i % 3);
        plan.first_token = i % 2 ? 0 : 7 * i;
        plan.vocab_size = i % 3 ? 0 : plan.first_token + (plan.vocab + 15) / 16 * 16 - i % 16;
        check_plan(&plan);
    }
}

static void portable_samples(void)
{
    static const int32_t samples[] = {2, 3, 4, 7, 8, 15, 16, 17, 33};
    for (int i = 0; i < 9; i++)
        for (int64_t batch = 1; batch <= 90; batch += 22) {
            problem_plan plan = portable(batch, 1553, 64);
            plan.samples = samples[i];
            check_plan(&plan);
        }
}

/* 16-bit weights with float32 hidden states: dot products have the CPU's bits. */
static void portable_mixed(void)
{
    for (int64_t i = 1; i <= 200; i++) {
        problem_plan plan = portable(1 + i % 37, 100 + 61 * (i % 19), i < 140 ? i : 13 * i);
        plan.weight_dtype = dtypes[i % 2];
        plan.hidden_dtype = GUMBEL_FLOAT32;
        plan.samples = i % 5 ? 1 : 1 + (int32_t)(i % 16);
        plan.bias_dtype = i % 3 ? 0 : GUMBEL_FLOAT32;
        plan.soft_cap = i % 7 ? 0 : 20;
        check_plan(&plan);
    }
    problem_plan large = portable(20, 151936, 64);
    large.weight_dtype = GUMBEL_BFLOAT16;
    large.hidden_dtype = GUMBEL_FLOAT32;
    check_plan(&large);
}

/* NaN in one row, +inf in another, tokens masked by a bias, and all tokens masked. */
static void portable_rows(void)
{
    for (int i = 0; i < 3; i++) {
        problem_plan plan = portable(20, 2049 + i, 64);
        plan.bias_dtype = GUMBEL_FLOAT32;
        problem *host = problem_make(&plan);
        float *bias = host->bias;
        dtype_store_nan(host->hidden, plan.hidden_dtype, 3 * (64 + plan.hidden_gap) + 9);
        for (int64_t t = 0; t < plan.vocab; t++)
            bias[t] = t % 500 == 7 ? bias[t] : -INFINITY;
        check_problem(host, "forbidden tokens");
        bias[1234] = INFINITY;
        check_problem(host, "an infinite logit");
        for (int64_t t = 0; t < plan.vocab; t++)
            bias[t] = -INFINITY;
        check_problem(host, "no token left");
        problem_free(host);
    }
}

/* Negative products that underflow give -0, except where zeros pad a stage; mixed dtypes have the
 * CPU's bits. */
static void portable_zeros(void)
{
    for (int64_t size = 1; size <= 70; size++) {
        problem_plan plan = portable(3, 129, size);
        plan.weight_dtype = size % 2 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT32;
        plan.hidden_dtype = size % 2 ? GUMBEL_FLOAT32 : GUMBEL_BFLOAT16;
        problem *host = problem_make(&plan);
        for (int64_t b = 0; b < plan.batch; b++)
            host->temperature[b] = 0;
        for (int64_t i = 0; i < plan.vocab * (size + plan.weight_gap); i++)
            dtype_store(host->weight, plan.weight_dtype, i, -0x1p-100f);
        for (int64_t i = 0; i < plan.batch * (size + plan.hidden_gap); i++)
            dtype_store(host->hidden, plan.hidden_dtype, i, 0x1p-60f);
        problem *device = gpu_problem(host);
        outcome *theirs = outcome_make(plan.batch, 1), *ours = outcome_make(plan.batch, 1);
        draw(cpu, &host->head, &host->sampling, theirs);
        gpu_draw(&device->head, NULL, &device->sampling, OUTCOME_SCORES, ours);
        CHECK(outcome_same(theirs, 0, ours, OUTCOME_TOKENS | OUTCOME_SCORES, "zeros"), "D %d",
              (int)size);
        draws_compared += plan.batch;
        outcome_free(theirs);
        outcome_free(ours);
        gpu_problem_free(device);
        problem_free(host);
    }
}

/* Noise computed ahead gives the outcome of noise on the fly. */
static void portable_noise(void)
{
    for (int i = 0; i < 24; i++) {
        problem_plan plan = portable(1 + 3 * i, 1201 + 16 * (i % 5), 64);
        plan.samples = 1 + i % 3;
        plan.first_token = 5 * i;
        plan.vocab_size = plan.first_token + plan.vocab - i % 4;
        problem *host = problem_make(&plan), *device = gpu_problem(host);
        outcome *wanted = outcome_make(plan.batch, plan.samples);
        outcome *found = outcome_make(plan.batch, plan.samples);
        int64_t stride = plan.vocab + i % 3;
        float *noise = gpu_make((size_t)(plan.batch * plan.samples * stride) * sizeof *noise);
        make_noise(gpu, NULL, &device->sampling, plan.batch, plan.first_token, plan.vocab, noise,
                   stride);
        gpu_draw(&device->head, NULL, &device->sampling, OUTCOME_ALL, wanted);
        device->sampling.noise = noise;
        device->sampling.noise_stride = stride;
        gpu_draw(&device->head, NULL, &device->sampling, OUTCOME_ALL, found);
        compare_ahead(wanted, found, problem_describe(&plan));
        draws_compared += plan.batch * plan.samples;
        outcome_free(wanted);
        outcome_free(found);
        gpu_free(noise);
        gpu_problem_free(device);
        problem_free(host);
    }
}

/* Borders between warp tiles keep every bit. */
static void portable_shards(void)
{
    static const int64_t cuts[] = {32, 96, 640, 77, 501, 0};
    problem_plan plan = portable(7, 1601, 64);
    plan.hidden_dtype = plan.weight_dtype = GUMBEL_FLOAT32;
    plan.samples = 3;
    check_shards(&plan, cuts, 32);
}

static void portable_invariance(void)
{
    for (int i = 0; i < 3; i++) {
        problem_plan plan = portable(150, 4113 + i, 128);
        check_invariance(&plan, OUTCOME_TOKENS | OUTCOME_SCORES);
        check_invariance(&plan, OUTCOME_ALL);
    }
}

/* Small problems for every width and dtype, for sanitizers. */
static void portable_small(void)
{
    for (int i = 0; i < 12; i++) {
        static const int64_t batches_of[] = {5, 13, 30, 66};
        problem_plan plan = portable(batches_of[i / 3], 300 + i % 3, 72);
        plan.samples = i == 4 ? 3 : 1;
        plan.soft_cap = i == 5 ? 20 : 0;
        plan.bias_dtype = i == 6 ? GUMBEL_BFLOAT16 : 0;
        plan.hidden_dtype = i % 5 == 3 ? GUMBEL_FLOAT32 : plan.weight_dtype;
        check_plan(&plan);
    }
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"portable_batches", portable_batches}, {"portable_vocabularies", portable_vocabularies},
        {"portable_sizes", portable_sizes},     {"portable_strides", portable_strides},
        {"portable_random", portable_random},   {"portable_samples", portable_samples},
        {"portable_mixed", portable_mixed},     {"portable_rows", portable_rows},
        {"portable_zeros", portable_zeros},     {"portable_noise", portable_noise},
        {"portable_shards", portable_shards},   {"portable_invariance", portable_invariance},
        {"portable_small", portable_small},     {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
