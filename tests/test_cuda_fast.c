/* SPDX-License-Identifier: Apache-2.0
 *
 * How far GUMBEL_MATH_FAST is off: word by word, in the rates of rare tokens, and in draws.
 */
#include "cuda_support.h"
#include "statistics.h"
#include "tail_rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* What gumbel.h states, as a bound: no noise is further off than this. */
#define FAST_ERROR 1e-5

static void fast_noise(void)
{
    const int64_t count = INT64_C(1) << 26;
    size_t bytes = (size_t)count * sizeof(float);
    float *made = gpu_make(bytes), *exact = malloc(bytes), *fast = malloc(bytes);
    gumbel_sampling sampling = {.struct_size = sizeof sampling};
    double worst = 0, bias = 0;
    int64_t differ = 0;
    if (!exact || !fast)
        die("out of memory");
    make_noise(gpu, &sampling, 1, 0, count, made, 0);
    gpu_fetch(exact, made, bytes);
    sampling.math = GUMBEL_MATH_FAST;
    make_noise(gpu, &sampling, 1, 0, count, made, 0);
    gpu_fetch(fast, made, bytes);
    for (int64_t i = 0; i < count; i++) {
        double error = (double)fast[i] - (double)exact[i];
        worst = fmax(worst, fabs(error));
        bias += error;
        differ += fast[i] != exact[i];
        if (!CHECK(fabs(error) < FAST_ERROR, "token %lld: fast %a, exact %a", (long long)i,
                   (double)fast[i], (double)exact[i]))
            break;
    }
    printf("%lld words: fast noise is off by %.2e at most, by %.1e on average; %.0f%% differ\n",
           (long long)count, worst, bias / (double)count, 100.0 * (double)differ / (double)count);
    CHECK(differ > count / 10, "fast maths changed %lld words", (long long)differ);
    free(exact);
    free(fast);
    gpu_free(made);
}

/* Fast noise of places, each a call of its own, as place_noise() is. */
static void fast_noise_of_places(const place *places, int64_t count, float *g)
{
    uint64_t *seeds = make_zeroed((size_t)count, sizeof *seeds);
    uint32_t *positions = make_zeroed((size_t)count, sizeof *positions);
    for (int64_t i = 0; i < count; i++) {
        seeds[i] = places[i].seed;
        positions[i] = places[i].position;
    }
    uint64_t *seeds_there = gpu_copy(seeds, (size_t)count * sizeof *seeds);
    uint32_t *positions_there = gpu_copy(positions, (size_t)count * sizeof *positions);
    float *made = gpu_make((size_t)count * sizeof *made);
    for (int64_t i = 0; i < count; i++) {
        gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                    .seed = seeds_there + i,
                                    .position = positions_there + i,
                                    .first_sample = places[i].sample,
                                    .domain = places[i].domain,
                                    .math = GUMBEL_MATH_FAST};
        make_noise(gpu, &sampling, 1, places[i].token, 1, made + i, 0);
    }
    GPU(cuCtxSynchronize);
    gpu_fetch(g, made, (size_t)count * sizeof *made);
    gpu_free(made);
    gpu_free(positions_there);
    gpu_free(seeds_there);
    free(positions);
    free(seeds);
}

static void exact_noise_of_places(const place *places, int64_t count, float *g)
{
    for (int64_t i = 0; i < count; i++)
        g[i] = place_noise(&places[i]);
}

/* Rates of rare tokens by fast maths, relative to the truth and to exact maths. */
static void nightly_fast_tail(void)
{
    tail_rates *exact = tail_rates_make(exact_noise_of_places);
    tail_rates *fast = tail_rates_make(fast_noise_of_places);
    printf("gap   fast      fast / exact - 1\n");
    for (int gap = 14; gap <= 30; gap += 2) {
        double rate = tail_rate(fast, gap), bias = rate / tail_rate(exact, gap) - 1;
        printf("%3d   %.5f   %+.1e\n", gap, rate, bias);
        CHECK(fabs(rate - 1) < 1e-3, "gap %d: rate %g", gap, rate);
        CHECK(fabs(bias) < FAST_ERROR, "gap %d: bias %g", gap, bias);
    }
    tail_rates_free(exact);
    tail_rates_free(fast);
}

/* Counts of draws against the softmax of z over T; a T wrong by 2% must fail. */
static void check_counts(const int64_t *counts, const double *z, int64_t vocab, double temperature,
                         int64_t draws, const char *what)
{
    double *p = make_zeroed((size_t)vocab, sizeof *p);
    chi_squared fair = {0}, off = {0};
    softmax(z, vocab, temperature, p);
    chi_squared_add(&fair, counts, p, vocab, draws);
    softmax(z, vocab, 1.02 * temperature, p);
    chi_squared_add(&off, counts, p, vocab, draws);
    double p_fair = chi_squared_p(fair.statistic, fair.degrees);
    double p_off = chi_squared_p(off.statistic, off.degrees);
    printf("%s, %lld draws: chi-squared %.0f of %.0f degrees, p %.3f; T 2%% off: p %.1e\n", what,
           (long long)draws, fair.statistic, fair.degrees, p_fair, p_off);
    CHECK(p_fair > 1e-4, "%s: p %g", what, p_fair);
    CHECK(p_off < 1e-9, "%s: p %g", what, p_off);
    free(p);
}

/* Draws by fast maths: on the fly, or with `ahead` from noise made ahead. */
static void draw_and_check(const problem *device, const gumbel_logits *on_gpu, const double *z,
                           float *ahead, const char *what)
{
    enum { CALLS = 80 };
    int64_t vocab = device->plan.vocab, samples = device->plan.samples;
    outcome *drawn = outcome_make(1, device->plan.samples);
    int64_t *counts = make_zeroed((size_t)vocab, sizeof *counts);
    for (int call = 0; call < CALLS; call++) {
        gumbel_sampling sampling = device->sampling;
        sampling.math = GUMBEL_MATH_FAST;
        sampling.first_sample = (uint32_t)(call * samples);
        if (ahead)
            make_noise(gpu, &sampling, 1, 0, vocab, ahead, 0);
        sampling.noise = ahead;
        gpu_draw(on_gpu ? NULL : &device->head, on_gpu, &sampling, OUTCOME_TOKENS, drawn);
        for (int64_t i = 0; i < samples; i++)
            counts[drawn->tokens[i]]++;
    }
    /* The row's temperature is 1. */
    check_counts(counts, z, vocab, 1, CALLS * samples, what);
    free(counts);
    outcome_free(drawn);
}

static void nightly_fast_chi_squared(void)
{
    enum { VOCAB = 1000, D = 4, SAMPLES = 65536 };
    problem_plan plan = {.batch = 1,
                         .vocab = VOCAB,
                         .hidden_size = D,
                         .samples = SAMPLES,
                         .weight_dtype = GUMBEL_FLOAT32,
                         .seed = 78};
    problem *host = problem_make(&plan), *device = gpu_problem(host);
    gumbel_logits logits = make_logits(host, GUMBEL_FLOAT32, 0), on_gpu = gpu_logits(&logits);
    float *made = gpu_make((size_t)SAMPLES * VOCAB * sizeof *made);
    double z[VOCAB], product[VOCAB] = {0};
    for (int i = 0; i < VOCAB; i++) {
        z[i] = ((const float *)logits.logits.data)[i];
        for (int k = 0; k < D; k++)
            product[i] += (double)((const float *)host->weight)[i * D + k] *
                          (double)((const float *)host->hidden)[k];
    }
    draw_and_check(device, &on_gpu, z, NULL, "from logits");
    draw_and_check(device, NULL, product, NULL, "from hidden states");
    draw_and_check(device, NULL, product, made, "noise ahead");
    gpu_free(made);
    gpu_free((void *)(uintptr_t)on_gpu.logits.data);
    free((void *)(uintptr_t)logits.logits.data);
    gpu_problem_free(device);
    problem_free(host);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"fast_noise", fast_noise},
        {"nightly_fast_tail", nightly_fast_tail},
        {"nightly_fast_chi_squared", nightly_fast_chi_squared},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
