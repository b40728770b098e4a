/* SPDX-License-Identifier: Apache-2.0
 *
 * Chi-squared tests of draws against the softmax: on rows of the bundled model, with the vocabulary
 * of a large model, and with many odd sizes; independence of draws with different seeds, positions
 * and samples; and the power of the tests: they detect a temperature wrong by 2%. Seeds are fixed.
 */
#include "fixtures.h"
#include "model_tensor.h"
#include "oracle.h"
#include "outcome.h"
#include "statistics.h"
#include "test_scale.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A correct sampler has a smaller p-value in one of 10^4 tests. */
#define LOWEST_P 1e-4
/* A wrong sampler must have a smaller p-value. */
#define CAUGHT_P 1e-9

#define CALL 65536 /* samples of one call, the maximum */

/* Draws `total` tokens of one row and counts them. One of `input` and `head` is NULL; B = 1. */
static void count_draws(gumbel_device *device, const gumbel_logits *input, const gumbel_head *head,
                        float temperature, uint64_t seed, int64_t total, int64_t *counts)
{
    outcome *drawn = outcome_make(1, CALL);
    int64_t first = input ? input->first_token : head->first_token;
    uint64_t position = 0;
    for (int64_t left = total; left > 0; left -= CALL, position++) {
        int32_t samples = left < CALL ? (int32_t)left : CALL;
        gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                    .temperature = {&temperature, GUMBEL_SAME},
                                    .seed = {&seed, GUMBEL_SAME},
                                    .position = {&position, GUMBEL_SAME},
                                    .num_samples = samples};
        assert_int_equal(input ? draw_logits(device, input, &sampling, drawn)
                               : draw(device, head, &sampling, drawn),
                         GUMBEL_OK);
        for (int32_t s = 0; s < samples; s++)
            counts[drawn->tokens[s] - first]++;
    }
    outcome_free(drawn);
}

static void print_result(const char *name, const chi_squared *found)
{
    print_message("%s: chi-squared %.1f, %.0f degrees of freedom, p %.4f, %.1f%% of the mass in "
                  "cells of one token\n",
                  name, found->statistic, found->degrees,
                  chi_squared_p(found->statistic, found->degrees), 100 * found->mass);
}

static void assert_fair(const char *name, const chi_squared *found)
{
    print_result(name, found);
    assert_true(found->degrees >= 1);
    assert_true(chi_squared_p(found->statistic, found->degrees) > LOWEST_P);
}

/* ------------------------------------------------------------------- the bundled model ---- */

/* Chi-squared of counts against the softmax at T, and at T wrong by +2% and -2%. */
typedef struct powered {
    chi_squared fair, cold, hot;
} powered;

static void add_powered(powered *sum, const int64_t *counts, const double *logits, int64_t vocab,
                        double temperature, int64_t total)
{
    double *p = make_zeroed((size_t)vocab, sizeof *p);
    softmax(logits, vocab, temperature, p);
    chi_squared_add(&sum->fair, counts, p, vocab, total);
    softmax(logits, vocab, temperature * 0.98, p);
    chi_squared_add(&sum->cold, counts, p, vocab, total);
    softmax(logits, vocab, temperature * 1.02, p);
    chi_squared_add(&sum->hot, counts, p, vocab, total);
    free(p);
}

static void assert_powered(const char *name, const powered *sum)
{
    assert_fair(name, &sum->fair);
    if (TEST_SANITIZED)
        return;
    print_result("  against T 2% lower", &sum->cold);
    print_result("  against T 2% higher", &sum->hot);
    assert_true(chi_squared_p(sum->cold.statistic, sum->cold.degrees) < CAUGHT_P);
    assert_true(chi_squared_p(sum->hot.statistic, sum->hot.degrees) < CAUGHT_P);
}

static void model_logits_draws_are_fair(void **state)
{
    gumbel_tensor golden = model_tensor("golden.safetensors", "target.logits");
    int64_t vocab = golden.cols, total = draws_of(2 * CALL) * nightly_factor();
    double *logits = make_zeroed((size_t)vocab, sizeof *logits);
    powered sum = {0};
    for (int64_t row = 0; row < (nightly_factor() > 1 ? golden.rows : 4); row++) {
        int64_t *counts = make_zeroed((size_t)vocab, sizeof *counts);
        gumbel_logits input = {.struct_size = sizeof input, .logits = golden};
        input.logits.data = (const float *)golden.data + row * vocab;
        input.logits.rows = 1;
        for (int64_t i = 0; i < vocab; i++)
            logits[i] = oracle_element(&input.logits, i);
        count_draws(*state, &input, NULL, 1, 81 + (uint64_t)row, total, counts);
        add_powered(&sum, counts, logits, vocab, 1, total);
        free(counts);
    }
    assert_powered("the model's logits, V 8192", &sum);
    free(logits);
    free((void *)golden.data);
}

static void model_hidden_states_draws_are_fair(void **state)
{
    gumbel_tensor hidden = model_tensor("golden.safetensors", "target.hidden");
    gumbel_tensor weight =
        model_tensor("kjv-target/model.safetensors", "model.embed_tokens.weight");
    int64_t vocab = weight.rows, total = draws_of(CALL) * nightly_factor();
    oracle_logits exact = {.z = make_zeroed((size_t)vocab, sizeof(double)),
                           .bound = make_zeroed((size_t)vocab, sizeof(double))};
    powered sum = {0};
    for (int64_t row = 20; row < (nightly_factor() > 1 ? hidden.rows : 24); row++) {
        int64_t *counts = make_zeroed((size_t)vocab, sizeof *counts);
        gumbel_head head = {.struct_size = sizeof head, .hidden = hidden, .weight = weight};
        head.hidden.data = (const float *)hidden.data + row * hidden.cols;
        head.hidden.rows = 1;
        oracle_fused_row(&head, 0, 1, &exact);
        count_draws(*state, NULL, &head, 0.8f, 82, total, counts);
        add_powered(&sum, counts, exact.z, vocab, 0.8f, total);
        free(counts);
    }
    assert_powered("the model's hidden states, T 0.8", &sum);
    free(exact.z);
    free(exact.bound);
    free((void *)hidden.data);
    free((void *)weight.data);
}

/* ------------------------------------------------------------------------ synthetic rows ---- */

/* All logits are far below 0, so that a padding lane counted as 0 would win every draw. */
static void large_vocabulary_draws_are_fair(void **state)
{
    enum { V = 151936, CLASSES = 500, PARTS = 187 };
    int64_t total = draws_of(CALL / 4) * nightly_factor();
    float *values = make_zeroed(V, sizeof *values);
    double *logits = make_zeroed(V, sizeof *logits), *p = make_zeroed(V, sizeof *p);
    int64_t *counts = make_zeroed(V, sizeof *counts), *class_of = make_zeroed(V, sizeof *class_of);
    uint64_t random = 83;
    for (int64_t i = 0; i < V; i++)
        logits[i] = values[i] = 3 * random_normal(&random) - 60;
    gumbel_logits input = {.struct_size = sizeof input,
                           .logits = tensor_of(values, GUMBEL_FLOAT32, 1, V, 0)};
    count_draws(*state, &input, NULL, 1, 84, total, counts);
    softmax(logits, V, 1, p);
    int64_t classes = group_by_mass(p, V, CLASSES, class_of);
    double class_p[CLASSES + 1] = {0}, part_p[PARTS + 1] = {0};
    int64_t class_counts[CLASSES + 1] = {0}, part_counts[PARTS + 1] = {0};
    for (int64_t i = 0; i < V; i++) {
        class_p[class_of[i]] += p[i];
        class_counts[class_of[i]] += counts[i];
        part_p[i * PARTS / V] += p[i];
        part_counts[i * PARTS / V] += counts[i];
    }
    chi_squared tokens = {0}, by_class = {0}, by_place = {0};
    chi_squared_add(&tokens, counts, p, V, total);
    assert_fair("V 151936, tokens", &tokens);
    chi_squared_add(&by_class, class_counts, class_p, classes, total);
    assert_fair("V 151936, classes of equal mass", &by_class);
    chi_squared_add(&by_place, part_counts, part_p, PARTS, total);
    assert_fair("V 151936, stretches of ids", &by_place);
    free(values);
    free(logits);
    free(p);
    free(counts);
    free(class_of);
}

/* A token with 90% of the mass is the first, the last or in the middle. */
static void dominant_token_rate(void **state)
{
    enum { V = 1000 };
    static float values[V];
    static double logits[V], p[V];
    const int places[] = {0, 63, 64, 500, 999};
    int64_t total = draws_of(CALL);
    chi_squared sum = {0};
    for (int k = 0; k < 5; k++) {
        int64_t counts[V] = {0};
        for (int i = 0; i < V; i++)
            logits[i] = values[i] = i == places[k] ? -100 : -100 - logf(9 * (V - 1));
        gumbel_logits input = {.struct_size = sizeof input,
                               .logits = tensor_of(values, GUMBEL_FLOAT32, 1, V, 0)};
        count_draws(*state, &input, NULL, 1, 85, total, counts);
        softmax(logits, V, 1, p);
        chi_squared_add(&sum, counts, p, V, total);
    }
    assert_fair("one-hot", &sum);
}

static void ragged_vocabulary_draws_are_fair(void **state)
{
    enum { VOCAB_MAX = 130 };
    int64_t total = draws_of(16384);
    chi_squared sum = {0};
    for (int64_t vocab = 1; vocab <= VOCAB_MAX; vocab++) {
        float values[VOCAB_MAX];
        double logits[VOCAB_MAX], p[VOCAB_MAX];
        int64_t counts[VOCAB_MAX] = {0};
        uint64_t random = 860 + (uint64_t)vocab;
        for (int64_t i = 0; i < vocab; i++)
            logits[i] = values[i] = random_normal(&random) - 25;
        gumbel_logits input = {.struct_size = sizeof input,
                               .logits = tensor_of(values, GUMBEL_FLOAT32, 1, vocab, 0),
                               .first_token = vocab % 7 * 11};
        count_draws(*state, &input, NULL, 1, (uint64_t)vocab, total, counts);
        softmax(logits, vocab, 1, p);
        chi_squared own = {0};
        chi_squared_add(&own, counts, p, vocab, total);
        chi_squared_add(&sum, counts, p, vocab, total);
        if (own.degrees > 0 && chi_squared_p(own.statistic, own.degrees) < LOWEST_P / VOCAB_MAX)
            fail_msg("V %" PRId64 ": chi-squared %.1f of %.0f", vocab, own.statistic, own.degrees);
    }
    assert_fair("V 1 .. 130", &sum);
}

/* -------------------------------------------------------------------------- independence ---- */

#define FEW   8
#define PAIRS 65536

/* Draws PAIRS rows with equal logits; the caller sets seeds, positions and samples. */
static void draw_many(gumbel_device *device, gumbel_sampling sampling, const double p[FEW],
                      int32_t *tokens)
{
    static float values[FEW * 1024];
    outcome *drawn = outcome_make(1024, 1);
    sampling.struct_size = sizeof sampling;
    for (int i = 0; i < FEW * 1024; i++)
        values[i] = (float)log(p[i % FEW]);
    gumbel_logits input = {.struct_size = sizeof input,
                           .logits = tensor_of(values, GUMBEL_FLOAT32, 1024, FEW, 0)};
    for (int64_t at = 0; at < PAIRS; at += 1024) {
        gumbel_sampling part = sampling;
        if (part.seed.stride != GUMBEL_SAME)
            part.seed.data += at;
        if (part.position.data && part.position.stride != GUMBEL_SAME)
            part.position.data += at;
        const uint32_t counter = (uint32_t)at;
        if (part.seed.stride == GUMBEL_SAME &&
            !part.position.data) /* rows differ in their seed alone */
            part.first_sample = (gumbel_row_u32){&counter, GUMBEL_SAME};
        assert_int_equal(draw_logits(device, &input, &part, drawn), GUMBEL_OK);
        memcpy(tokens + at, drawn->tokens, 1024 * sizeof *tokens);
    }
    outcome_free(drawn);
}

static void assert_independent(const char *name, const int32_t *a, const int32_t *b, int64_t count,
                               const double p[FEW])
{
    int64_t counts[FEW * FEW] = {0};
    chi_squared joint = {0};
    for (int64_t i = 0; i < count; i++)
        counts[a[i] * FEW + b[i]]++;
    chi_squared_add_joint(&joint, counts, p, FEW, p, FEW, count);
    assert_fair(name, &joint);
}

static void draws_are_independent(void **state)
{
    const double p[FEW] = {0.3, 0.2, 0.15, 0.1, 0.1, 0.07, 0.05, 0.03};
    int32_t *a = make_zeroed(PAIRS, sizeof *a), *b = make_zeroed(PAIRS, sizeof *b);
    uint64_t *seed = make_zeroed(PAIRS, sizeof *seed),
             *next_seed = make_zeroed(PAIRS, sizeof *seed);
    uint64_t *position = make_zeroed(PAIRS, sizeof *position);
    const uint32_t next_sample = 1;
    for (uint32_t i = 0; i < PAIRS; i++) {
        seed[i] = 2 * i;
        next_seed[i] = 2 * i + 1;
        position[i] = i;
    }
    draw_many(*state, (gumbel_sampling){.seed = {seed, GUMBEL_SAME}}, p, a);
    assert_independent("rows of a batch", a, a + 1, PAIRS - 1, p);
    draw_many(*state, (gumbel_sampling){.seed = {seed, GUMBEL_SAME}, .position = {position, 0}}, p,
              a);
    assert_independent("neighbouring rows and positions", a, a + 1, PAIRS - 1, p);
    draw_many(*state, (gumbel_sampling){.seed = {seed, 0}}, p, a);
    draw_many(*state, (gumbel_sampling){.seed = {next_seed, 0}}, p, b);
    assert_independent("neighbouring seeds", a, b, PAIRS, p);
    draw_many(*state, (gumbel_sampling){.seed = {seed, 0}, .position = {position + 1, GUMBEL_SAME}},
              p, b);
    assert_independent("neighbouring positions", a, b, PAIRS, p);
    draw_many(*state,
              (gumbel_sampling){.seed = {seed, 0}, .first_sample = {&next_sample, GUMBEL_SAME}}, p,
              b);
    assert_independent("neighbouring samples", a, b, PAIRS, p);
    draw_many(*state, (gumbel_sampling){.seed = {seed, 0}, .domain = GUMBEL_DOMAIN_DRAFT}, p, b);
    assert_independent("neighbouring domains", a, b, PAIRS, p);
    free(a);
    free(b);
    free(seed);
    free(next_seed);
    free(position);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_logits_draws_are_fair),
        cmocka_unit_test(model_hidden_states_draws_are_fair),
        cmocka_unit_test(large_vocabulary_draws_are_fair),
        cmocka_unit_test(dominant_token_rate),
        cmocka_unit_test(ragged_vocabulary_draws_are_fair),
        cmocka_unit_test(draws_are_independent),
    };
    return cmocka_run_group_tests(tests, open_one_thread, close_device);
}
