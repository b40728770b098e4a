/* SPDX-License-Identifier: Apache-2.0
 *
 * The draw from logits on a GPU: the CPU's bits, rows without a valid draw, and chi-squared.
 */
#include "cuda_support.h"

#include "problem_plans.h"
#include "statistics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Draw from logits of a plan on both devices, with and without mass. */
static void check_logits(const problem_plan *plan, gumbel_dtype dtype, int64_t gap)
{
    problem_plan rows = *plan;
    rows.hidden_size = 1;
    problem *host = problem_make(&rows), *device = gpu_problem(host);
    gumbel_logits logits = make_logits(host, dtype, gap), on_gpu = gpu_logits(&logits);
    outcome *theirs = outcome_make(plan->batch, host->plan.samples);
    outcome *ours = outcome_make(plan->batch, host->plan.samples);
    char what[400];
    snprintf(what, sizeof what, "logits %s+%d %s", dtype_name(dtype), (int)gap,
             problem_describe(&host->plan));
    CHECK(draw_logits(cpu, &logits, &host->sampling, theirs) == GUMBEL_OK, "%s", what);
    gpu_draw(NULL, &on_gpu, &device->sampling, OUTCOME_TOKENS | OUTCOME_SCORES, ours);
    compare(theirs, ours, OUTCOME_TOKENS | OUTCOME_SCORES, 1, what);
    outcome_poison(ours);
    gpu_draw(NULL, &on_gpu, &device->sampling, OUTCOME_ALL, ours);
    compare(theirs, ours, OUTCOME_ALL, 1, what);
    outcome_free(theirs);
    outcome_free(ours);
    gpu_free((void *)(uintptr_t)on_gpu.logits.data);
    free((void *)(uintptr_t)logits.logits.data);
    gpu_problem_free(device);
    problem_free(host);
}

static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};

static void logits_plans(void)
{
    for (int i = 0; i < 300; i++) {
        problem_plan plan = plan_at_random(i);
        plan.vocab += i % 5 == 0 ? 3000 : 0;
        plan.first_token = plan.first_token > INT32_MAX - 20000 ? 37 : plan.first_token;
        plan.vocab_size = i % 4 ? 0 : plan.first_token + 1 + plan.vocab / 2;
        check_logits(&plan, dtypes[i % 3], i % 7);
    }
}

static void logits_vocabularies(void)
{
    for (int64_t vocab = 1; vocab <= 140; vocab++) {
        problem_plan plan = {.batch = 2,
                             .vocab = vocab,
                             .first_token = vocab % 9,
                             .temperature = -1,
                             .seed = (uint64_t)vocab};
        check_logits(&plan, dtypes[vocab % 3], 0);
    }
}

static void logits_batches(void)
{
    for (int64_t batch = 1; batch <= 300; batch += batch < 70 ? 3 : 46) {
        problem_plan plan = {
            .batch = batch, .vocab = 5000 + batch, .temperature = -0.9f, .seed = (uint64_t)batch};
        check_logits(&plan, dtypes[batch % 3], 0);
    }
}

static void logits_large(void)
{
    static const int64_t batches[] = {1, 3, 33};
    for (int i = 0; i < 3; i++) {
        problem_plan plan = {.batch = batches[i],
                             .vocab = 151936,
                             .samples = i == 0 ? 70 : 1,
                             .seed = 5 + (uint64_t)i};
        check_logits(&plan, dtypes[i], 0);
    }
}

/* A row has the same bits alone and in every batch, also if the splits of the row differ. */
static void logits_invariance(void)
{
    enum { BATCH = 200, VOCAB = 20011 };
    problem_plan plan = {.batch = BATCH, .vocab = VOCAB, .hidden_size = 1, .seed = 3};
    problem *host = problem_make(&plan), *device = gpu_problem(host);
    gumbel_logits logits = make_logits(host, GUMBEL_FLOAT32, 5), on_gpu = gpu_logits(&logits);
    outcome *whole = outcome_make(BATCH, 1);
    uint64_t state = 11;
    gpu_draw(NULL, &on_gpu, &device->sampling, OUTCOME_ALL, whole);
    for (int i = 0; i < 30; i++) {
        static const int64_t sizes[] = {1, 2, 5, 16, 61, 100};
        int64_t count = sizes[i % 6], first = random_below(&state, (uint32_t)(BATCH - count + 1));
        outcome *some = outcome_make(count, 1);
        gumbel_logits rows = on_gpu;
        gumbel_head unused;
        gumbel_sampling sampling;
        char what[64];
        problem_rows(device, first, count, &unused, &sampling);
        rows.logits.data = (const float *)rows.logits.data + first * rows.logits.stride;
        rows.logits.rows = count;
        gpu_draw(NULL, &rows, &sampling, OUTCOME_ALL, some);
        snprintf(what, sizeof what, "rows %d + %d of %d", (int)first, (int)count, BATCH);
        CHECK(outcome_same(whole, first, some, OUTCOME_ALL, what), "%s", what);
        outcome_free(some);
    }
    outcome_free(whole);
    gpu_free((void *)(uintptr_t)on_gpu.logits.data);
    free((void *)(uintptr_t)logits.logits.data);
    gpu_problem_free(device);
    problem_free(host);
}

/* Rows with few finite logits: the first tokens give no threshold. */
static void logits_masked(void)
{
    enum { BATCH = 4, VOCAB = 30011 };
    problem_plan plan = {
        .batch = BATCH, .vocab = VOCAB, .hidden_size = 1, .temperature = -1, .seed = 31};
    problem *host = problem_make(&plan), *device = gpu_problem(host);
    gumbel_logits logits = make_logits(host, GUMBEL_FLOAT32, 0);
    float *values = (float *)(uintptr_t)logits.logits.data;
    outcome *theirs = outcome_make(BATCH, 1), *ours = outcome_make(BATCH, 1);
    for (int i = 0; i < VOCAB; i++) {
        values[i] = i == VOCAB - 1 ? values[i] : -INFINITY;
        values[VOCAB + i] = i > 3 * VOCAB / 4 ? values[VOCAB + i] : -INFINITY;
        values[2 * VOCAB + i] = i % 97 == 0 ? values[2 * VOCAB + i] : -INFINITY;
        values[3 * VOCAB + i] = i == 0 ? -1e30f : -INFINITY;
    }
    gumbel_logits on_gpu = gpu_logits(&logits);
    CHECK(draw_logits(cpu, &logits, &host->sampling, theirs) == GUMBEL_OK, "masked rows");
    gpu_draw(NULL, &on_gpu, &device->sampling, OUTCOME_TOKENS | OUTCOME_SCORES, ours);
    compare(theirs, ours, OUTCOME_TOKENS | OUTCOME_SCORES, 1, "masked rows");
    gpu_draw(NULL, &on_gpu, &device->sampling, OUTCOME_ALL, ours);
    compare(theirs, ours, OUTCOME_ALL, 1, "masked rows");
    CHECK(theirs->tokens[0] == VOCAB - 1 && theirs->tokens[3] == 0, "lone survivors: %d, %d",
          (int)theirs->tokens[0], (int)theirs->tokens[3]);
    outcome_free(theirs);
    outcome_free(ours);
    gpu_free((void *)(uintptr_t)on_gpu.logits.data);
    free(values);
    gpu_problem_free(device);
    problem_free(host);
}

/* ------------------------------------------------------------------------------- odd rows ---- */

/* Rows with NaN, with +inf, and with only -inf among valid rows, from logits and from a head. */
static void odd_rows(void)
{
    enum { BATCH = 6, VOCAB = 3008, SIZE = 64 };
    problem_plan plan = {.batch = BATCH,
                         .vocab = VOCAB,
                         .hidden_size = SIZE,
                         .seed = 21,
                         .weight_dtype = GUMBEL_BFLOAT16,
                         .hidden_dtype = GUMBEL_BFLOAT16,
                         .temperature = -1};
    problem *host = problem_make(&plan);
    gumbel_logits logits = make_logits(host, GUMBEL_FLOAT32, 0);
    float *values = (float *)(uintptr_t)logits.logits.data;
    outcome *theirs = outcome_make(BATCH, 1), *ours = outcome_make(BATCH, 1);
    values[1 * VOCAB + VOCAB - 1] = NAN;
    values[2 * VOCAB + 5] = INFINITY;
    values[3 * VOCAB + 77] = -INFINITY;
    for (int i = 0; i < VOCAB; i++)
        values[4 * VOCAB + i] = -INFINITY;
    dtype_store_nan(host->hidden, GUMBEL_BFLOAT16, 2 * SIZE + 9);
    for (int fused = 0; fused < 2; fused++) {
        problem *device = gpu_problem(host);
        gumbel_logits on_gpu = gpu_logits(&logits);
        if (fused)
            draw(cpu, &host->head, &host->sampling, theirs);
        else
            draw_logits(cpu, &logits, &host->sampling, theirs);
        for (int mass = 0; mass < 2; mass++) {
            outcome_parts parts = mass ? OUTCOME_ALL : OUTCOME_TOKENS | OUTCOME_SCORES;
            gpu_draw(fused ? &device->head : NULL, fused ? NULL : &on_gpu, &device->sampling, parts,
                     ours);
            compare(theirs, ours, parts, !fused, "odd rows");
        }
        gpu_free((void *)(uintptr_t)on_gpu.logits.data);
        gpu_problem_free(device);
    }
    CHECK(theirs->status[2] == GUMBEL_ROW_NAN, "status %d", (int)theirs->status[2]);
    outcome_free(theirs);
    outcome_free(ours);
    free(values);
    problem_free(host);
}

/* Invalid parameters that the host cannot read affect only their row. */
static void odd_temperatures(void)
{
    enum { BATCH = 5 };
    problem_plan plan = {.batch = BATCH,
                         .vocab = 512,
                         .hidden_size = 64,
                         .seed = 22,
                         .weight_dtype = GUMBEL_BFLOAT16,
                         .hidden_dtype = GUMBEL_BFLOAT16};
    problem *host = problem_make(&plan);
    outcome *sound = outcome_make(BATCH, 1), *ours = outcome_make(BATCH, 1);
    problem *device = gpu_problem(host);
    gpu_draw(&device->head, NULL, &device->sampling, OUTCOME_TOKENS, sound);
    gpu_problem_free(device);
    host->temperature[0] = -1;
    host->temperature[2] = NAN;
    host->temperature[3] = INFINITY;
    device = gpu_problem(host);
    gpu_draw(&device->head, NULL, &device->sampling, OUTCOME_TOKENS, ours);
    for (int b = 0; b < BATCH; b++) {
        int bad = b == 0 || b == 2 || b == 3;
        CHECK(ours->status[b] == (bad ? GUMBEL_ROW_TEMPERATURE : GUMBEL_ROW_OK), "row %d: %d", b,
              (int)ours->status[b]);
        CHECK(ours->tokens[b] == (bad ? -1 : sound->tokens[b]), "row %d: %d", b,
              (int)ours->tokens[b]);
    }
    gpu_problem_free(device);
    outcome_free(sound);
    outcome_free(ours);
    problem_free(host);
}

/* Small problems for every kernel, for sanitizers. */
static void logits_small(void)
{
    for (int i = 0; i < 6; i++) {
        problem_plan plan = {.batch = 1 + 2 * i,
                             .vocab = 1500 + i,
                             .samples = 1 + i % 3,
                             .first_token = i % 2 ? 7 : 0,
                             .soft_cap = i == 3 ? 10.0f : 0.0f,
                             .temperature = -1,
                             .seed = 60 + (uint64_t)i};
        check_logits(&plan, dtypes[i % 3], i);
    }
}

/* --------------------------------------------------------------------------------- nightly ---- */

/* 10 million draws from 151936 tokens pass chi-squared; a temperature 5% off fails it. */
static void nightly_chi_squared(void)
{
    enum { VOCAB = 151936, SAMPLES = 65536, CALLS = 153 };
    problem_plan plan = {
        .batch = 1, .vocab = VOCAB, .hidden_size = 1, .samples = SAMPLES, .seed = 77};
    problem *host = problem_make(&plan), *device = gpu_problem(host);
    gumbel_logits logits = make_logits(host, GUMBEL_FLOAT32, 0), on_gpu = gpu_logits(&logits);
    const float *values = logits.logits.data;
    outcome *drawn = outcome_make(1, SAMPLES);
    int64_t *counts = make_zeroed(VOCAB, sizeof *counts);
    double *in_double = make_zeroed(VOCAB, sizeof *in_double);
    double *p = make_zeroed(VOCAB, sizeof *p);
    chi_squared fair = {0}, off = {0};
    for (int call = 0; call < CALLS; call++) {
        gpu_put(device->first_sample, &(uint32_t){(uint32_t)call * SAMPLES}, sizeof(uint32_t));
        gpu_draw(NULL, &on_gpu, &device->sampling, OUTCOME_TOKENS, drawn);
        for (int i = 0; i < SAMPLES; i++)
            counts[drawn->tokens[i]]++;
    }
    for (int i = 0; i < VOCAB; i++)
        in_double[i] = values[i];
    softmax(in_double, VOCAB, 1, p);
    chi_squared_add(&fair, counts, p, VOCAB, (int64_t)SAMPLES * CALLS);
    softmax(in_double, VOCAB, 1.05, p);
    chi_squared_add(&off, counts, p, VOCAB, (int64_t)SAMPLES * CALLS);
    double p_fair = chi_squared_p(fair.statistic, fair.degrees);
    double p_off = chi_squared_p(off.statistic, off.degrees);
    printf("%d draws: chi-squared %.0f of %.0f degrees, p %.3f; T 5%% off: p %.1e\n",
           SAMPLES * CALLS, fair.statistic, fair.degrees, p_fair, p_off);
    CHECK(p_fair > 1e-4, "p %g", p_fair);
    CHECK(p_off < 1e-9, "p %g", p_off);
    free(counts);
    free(in_double);
    free(p);
    outcome_free(drawn);
    gpu_free((void *)(uintptr_t)on_gpu.logits.data);
    free((void *)(uintptr_t)logits.logits.data);
    gpu_problem_free(device);
    problem_free(host);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"logits_plans", logits_plans},
        {"logits_vocabularies", logits_vocabularies},
        {"logits_batches", logits_batches},
        {"logits_large", logits_large},
        {"logits_invariance", logits_invariance},
        {"logits_masked", logits_masked},
        {"odd_rows", odd_rows},
        {"odd_temperatures", odd_temperatures},
        {"logits_small", logits_small},
        {"nightly_chi_squared", nightly_chi_squared},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
