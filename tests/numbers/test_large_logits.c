/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounding of float32 scores of large logits: the rate of the lowest id among equal logits, which
 * wins every tie, against the bound in docs/maths.md, section 11. Temperatures below the smallest.
 */
#include "outcome.h"
#include "test_scale.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { V = 64, S = 65536 };

/* The spacing of float32 at x. */
static double float_spacing(double x)
{
    int exponent;
    frexp(fabs(x), &exponent);
    return ldexp(1, exponent - 24);
}

/* The rate of token 0 among V tokens with logit z, times V, in `rows` * S draws. */
static double first_rate(gumbel_device *device, float z, int rows)
{
    static float values[V];
    static int32_t tokens[S];
    int64_t first = 0;
    size_t bytes;
    for (int i = 0; i < V; i++)
        values[i] = z;
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = tensor_of(values, GUMBEL_FLOAT32, 1, V, 0)};
    gumbel_output output = {.struct_size = sizeof output, .tokens = tokens};
    void *workspace = make_workspace(device, 1, 0, S, &bytes);
    for (int row = 0; row < rows; row++) {
        uint64_t seed = 1000 + (uint64_t)row;
        gumbel_sampling sampling = {
            .struct_size = sizeof sampling, .seed = {&seed, GUMBEL_SAME}, .num_samples = S};
        assert_int_equal(
            gumbel_sample_logits(device, NULL, &logits, &sampling, &output, workspace, bytes, NULL),
            GUMBEL_OK);
        for (int s = 0; s < S; s++)
            first += tokens[s] == 0;
    }
    free(workspace);
    return (double)first * V / ((double)rows * S);
}

/* The rate of token 0, relative to 1/V, is between e^-h and min(e^h, V), with h the spacing of the
 * largest scores, within five standard errors of the count. */
static void tie_rate_of_large_logits(void **state)
{
    static const float sizes[] = {0, 1e3f, 1e4f, 1e5f, 1e6f, 1e7f, -1e7f, 1e8f, -1e8f, 1e9f};
    const int rows = 4 * nightly_factor();
    const double noise = 5 * sqrt(V / ((double)rows * S));
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, 1, 0);
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double h = float_spacing(fabs((double)sizes[i]) + 46);
        double rate = first_rate(device, sizes[i], rows), bound = fmin(exp(h), V);
        print_message(
            "64 logits of %.0e: token 0 drawn at %.4f of the right rate (noise %.4f), h %.3g, "
            "bound %.4f\n",
            (double)sizes[i], rate, noise / 5 * sqrt(rate), h, bound);
        assert_true(rate < bound + noise * sqrt(rate));
        assert_true(rate > exp(-h) - noise);
    }
    gumbel_close(device);
}

/* Any T below 2^-100 draws like 2^-100: greedily between logits 4e-29 apart, randomly between
 * closer ones. */
static void temperatures_below_the_minimum(void **state)
{
    static const float temperatures[] = {0x1p-100f, 0x1p-101f, 0x1p-126f, 0x1p-149f};
    static const float gaps[] = {4e-29f, 1e-30f};
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, 1, 0);
    outcome *drawn = outcome_make(1, 1000), *first = outcome_make(1, 1000);
    (void)state;
    for (int g = 0; g < 2; g++)
        for (int t = 0; t < 4; t++) {
            float values[2] = {0, gaps[g]};
            int64_t higher = 0;
            gumbel_logits logits = {.struct_size = sizeof logits,
                                    .logits = tensor_of(values, GUMBEL_FLOAT32, 1, 2, 0)};
            gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                        .temperature = {&temperatures[t], GUMBEL_SAME},
                                        .num_samples = 1000};
            outcome *into = t == 0 ? first : drawn;
            assert_int_equal(draw_logits(device, &logits, &sampling, into), GUMBEL_OK);
            for (int s = 0; s < 1000; s++)
                higher += into->tokens[s];
            assert_int_equal(higher == 1000, g == 0);
            assert_true(outcome_same(first, 0, into, OUTCOME_ALL, "a smaller temperature"));
        }
    outcome_free(drawn);
    outcome_free(first);
    gumbel_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tie_rate_of_large_logits),
        cmocka_unit_test(temperatures_below_the_minimum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
