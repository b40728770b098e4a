/* SPDX-License-Identifier: Apache-2.0
 *
 * Selections among few values have the results of histograms. Guesses of an n-th largest value:
 * n values reach them, and few more.
 */
#include "cpu/host/cpu_device.h"
#include "cpu/rows/cpu_few_values.h"
#include "inputs.h"
#include "outcome.h"
#include "test_scale.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "every_isa.h"

enum { BLOCKS_FEW = (CPU_FEW + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK, BLOCKS_MAX = 2400 };

/* Values of a row, -inf from the `count`-th on. */
typedef struct few_row {
    float v[BLOCKS_FEW * GUMBEL_BLOCK], maxima[BLOCKS_FEW];
    int count;
} few_row;

static float random_value(uint64_t *state, float spread, int tied)
{
    const float v = spread * random_normal(state);
    return tied ? rintf(v * 2.0f) / 2.0f : v;
}

static cpu_values make_few(few_row *row, const cpu_kernels *kernels, uint64_t *state)
{
    const float spread = (float[]){0.01f, 1.0f, 12.0f, 1e30f}[random_below(state, 4)];
    const int tied = random_below(state, 2);
    float largest = -INFINITY;
    row->count = 1 + (int)random_below(state, CPU_FEW);
    for (int i = 0; i < BLOCKS_FEW * GUMBEL_BLOCK; i++) {
        row->v[i] = i < row->count ? random_value(state, spread, tied) : -INFINITY;
        largest = fmaxf(largest, row->v[i]);
    }
    kernels->find_maxima(row->v, BLOCKS_FEW, row->maxima);
    return (cpu_values){.span = {{row->v, row->maxima, BLOCKS_FEW, 1}},
                        .spans = 1,
                        .blocks = BLOCKS_FEW,
                        .largest = largest,
                        .scale = 1.0f};
}

static void selections_agree_with_histograms(void **state)
{
    const cpu_kernels *kernels = ((const cpu_device *)*state)->kernels;
    const int rows = TEST_SANITIZED ? 500 : 10000;
    uint64_t random = 8;
    int reached = 0;
    cpu_weight bins[CPU_BINS];
    for (int i = 0; i < rows; i++) {
        few_row row;
        cpu_values values = make_few(&row, kernels, &random);
        gumbel_wide needed, total;
        const int by_mass = i % 2;
        const float least = i % 3 ? -FLT_MAX : row.v[random_below(&random, (uint32_t)row.count)];
        cpu_sum_row_masses(kernels, &values, -FLT_MAX, values.largest, &total);
        if (by_mass)
            needed = 1 + total / 1000 * random_below(&random, 1003);
        else
            needed = 1 + random_below(&random, (uint32_t)row.count + 1);
        const cpu_selection by_bins =
            cpu_select_by_weight(kernels, &values, by_mass, needed, least, bins);
        values.few = row.count;
        const cpu_selection sorted =
            cpu_select_by_weight(kernels, &values, by_mass, needed, least, bins);
        assert_int_equal(sorted.reached, by_bins.reached);
        if (!sorted.reached)
            continue;
        assert_true(sorted.value == by_bins.value);
        assert_true(sorted.above == by_bins.above && sorted.at == by_bins.at);
        reached++;
    }
    assert_true(reached > rows / 2 && reached < rows);
}

/* Fills maxima of ordinary or of hostile rows, and returns whether they are normal, without ties.
 */
static int fill_maxima(float *maxima, int64_t blocks, int kind, uint64_t *state)
{
    for (int64_t k = 0; k < blocks; k++) {
        const float v = random_normal(state);
        const int is_rare = random_below(state, 97) == 0;
        maxima[k] = kind == 0   ? v
                    : kind == 1 ? 1.5f
                    : kind == 2 ? (is_rare ? v : -INFINITY)
                    : kind == 3 ? (is_rare ? 1e30f * v : -FLT_MAX)
                    : kind == 4 ? 1e-42f * v
                    : kind == 5 ? rintf(v)
                    : kind == 6 ? (v < 0 ? -0.0f : 0.0f)
                                : -INFINITY;
    }
    return kind == 0;
}

static void guesses_are_reached(void **state)
{
    static float maxima[BLOCKS_MAX];
    uint64_t random = 9;
    double excess = 0;
    int normal = 0;
    (void)state;
    for (int i = 0; i < 800; i++) {
        static const int64_t edges[] = {1, 2, 16, CPU_GROUPS - 1, CPU_GROUPS, 2 * CPU_GROUPS};
        const int64_t blocks =
            i % 5 ? 1 + random_below(&random, BLOCKS_MAX) : edges[random_below(&random, 6)];
        int64_t n = 1 + random_below(&random, CPU_GROUPS / 5);
        while (!cpu_guesses_nth_largest(n, blocks))
            n /= 2;
        const float scale = i % 3 ? 1.0f : 0.37f, least = i % 7 ? -FLT_MAX : -0.25f;
        const int is_normal = fill_maxima(maxima, blocks, i % 8, &random);
        assert_true(n > 0);
        const float guess = cpu_guess_nth_largest(maxima, blocks, n, scale, least);
        int64_t count = 0;
        for (int64_t k = 0; k < blocks; k++)
            count += maxima[k] * scale >= guess;
        assert_true(guess == least || (guess > least && count >= n));
        excess += is_normal ? (double)(count - n) / (double)(n + 10) : 0;
        normal += is_normal;
    }
    assert_true(normal >= 100 && excess / normal < 0.25);
    assert_false(cpu_guesses_nth_largest(CPU_GROUPS, INT64_MAX));
    assert_false(cpu_guesses_nth_largest(3, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selections_agree_with_histograms),
        cmocka_unit_test(guesses_are_reached),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
