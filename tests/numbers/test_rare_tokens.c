/* SPDX-License-Identifier: Apache-2.0
 *
 * Rare tokens: the rate at which a token `gap` nats below a dominant one is drawn, relative to the
 * exact 1 / (1 + e^gap). By enumeration of the library's noise up to gap 30, and by draws.
 */
#include "outcome.h"
#include "tail_rates.h"
#include "test_scale.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void noise_of_places(const noise_place *places, int64_t count, float *g)
{
    for (int64_t i = 0; i < count; i++)
        g[i] = place_noise(&places[i]);
}

/* The rate with uniforms of 24 bits at midpoints, which other samplers use. */
static double rate_of_24_bits(double gap)
{
    double sum = 0;
    for (int k = 0; k < 1 << 16; k++)
        sum += exp(log1p(-(k + 0.5) * 0x1p-24) * exp(gap));
    return sum * 0x1p-24 * (1 + exp(gap));
}

static void rare_token_rate_by_enumeration(void **state)
{
    (void)state;
    tail_rates *rates = tail_rates_make(noise_of_places, nightly_factor() > 1 ? 2048 : 128);
    print_message("gap   less 1, another block   the same block   24-bit uniforms\n");
    for (int gap = 2; gap <= 30; gap++) {
        double apart = tail_rate(rates, gap, 0), together = tail_rate(rates, gap, 1),
               coarse = rate_of_24_bits(gap);
        print_message("%3d   %+.2e               %+.2e        %.5f\n", gap, apart - 1, together - 1,
                      coarse);
        double bound = gap < 19 ? 1e-7 : 4e-7;
        assert_true(fabs(apart - 1) < bound && fabs(together - 1) < bound);
        /* The enumeration detects such uniforms. */
        assert_true(gap < 18 || coarse < 0.6);
        assert_true(gap < 22 || coarse < 1e-3);
    }
    tail_rates_free(rates);
}

/* Draws `total` times from one dominant token and V - 1 tokens `gap` below; returns how many draws
 * gave a rare token. */
static int64_t count_rare(gumbel_device *device, int64_t vocab, float gap, int64_t total)
{
    enum { CALL = 65536 };
    float *values = make_zeroed((size_t)vocab, sizeof *values);
    outcome *drawn = outcome_make(1, CALL);
    int64_t dominant = vocab / 2, rare = 0;
    uint64_t position = 0;
    uint64_t seed = (uint64_t)vocab;
    for (int64_t i = 0; i < vocab; i++)
        values[i] = i == dominant ? -3 : -3 - gap;
    gumbel_logits input = {.struct_size = sizeof input,
                           .logits = tensor_of(values, GUMBEL_FLOAT32, 1, vocab, 0)};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .seed = {&seed, GUMBEL_SAME},
                                .position = {&position, GUMBEL_SAME}};
    for (; total > 0; total -= CALL, position++) {
        sampling.num_samples = total < CALL ? (int32_t)total : CALL;
        assert_int_equal(draw_logits(device, &input, &sampling, drawn), GUMBEL_OK);
        for (int s = 0; s < sampling.num_samples; s++)
            rare += drawn->tokens[s] != dominant;
    }
    outcome_free(drawn);
    free(values);
    return rare;
}

static void rare_token_rate_by_drawing(void **state)
{
    (void)state;
    const struct {
        int64_t vocab, draws;
        float gap;
    } cases[] = {{64, 1 << 18, 8}, {64, 1 << 20, 10}, {64, 1 << 21, 12}, {4096, 1 << 18, 16}};
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, 1, 0);
    print_message("gap   V      draws      rare   expected\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t draws = draws_of(cases[i].draws) * nightly_factor();
        double odds = (double)(cases[i].vocab - 1) * exp(-cases[i].gap);
        double expected = (double)draws * odds / (1 + odds);
        int64_t rare = count_rare(device, cases[i].vocab, cases[i].gap, draws);
        print_message("%3.0f   %-6lld %-10lld %-6lld %.1f\n", (double)cases[i].gap,
                      (long long)cases[i].vocab, (long long)draws, (long long)rare, expected);
        /* Four standard deviations; a sampler that is 40% short at gap 16 is further off. */
        assert_true(fabs((double)rare - expected) < 4 * sqrt(expected));
        assert_true(TEST_SANITIZED || 4 * sqrt(expected) < 0.4 * expected);
    }
    gumbel_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rare_token_rate_by_enumeration),
        cmocka_unit_test(rare_token_rate_by_drawing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
