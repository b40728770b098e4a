/* SPDX-License-Identifier: Apache-2.0
 *
 * The dither of a screen (docs/maths.md, section 14): quantization errors have the law that the
 * probable bound assumes, whatever the weights are; without dither the bound fails.
 */
#include "outcome.h"
#include "screen_intervals.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* Weights that are half a step off an integer have the largest error if they are rounded to the
 * nearest one: the probable bound fails without dither, and holds with it. */
static void half_steps_need_dither(void **state)
{
    static float h[1024];
    seen with = {0}, without = {0};
    generated_head head = generate_half_steps(1024, 1.0f);
    screened s = make_screened(*state, &head, 256, GUMBEL_SCREEN_PROBABLE);
    fill_ones(h, 1024);
    check_logits(&s, h, WHOLE, &with);
    remove_dither(&s);
    check_logits(&s, h, WHOLE, &without);
    print_message("with dither %ld of %ld outside, without %ld\n", with.outside, with.checked,
                  without.outside);
    assert_int_equal(with.outside, 0);
    assert_int_equal(without.outside, without.checked);
    free(s.screen);
    free((void *)(uintptr_t)head.weight.data);
}

enum { ROWS = 192, COLUMNS = 512, BINS = 16 };

/* The chi-squared statistic, of 15 degrees of freedom, of all errors in bins of equal width. */
static double test_uniformity(float errors[ROWS][COLUMNS])
{
    const double expected = (double)ROWS * COLUMNS / BINS;
    long bins[BINS] = {0};
    double chi = 0.0;
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < COLUMNS; i++)
            bins[(int)fmin(fmax(((double)errors[row][i] + 0.5) * BINS, 0), BINS - 1)]++;
    for (int bin = 0; bin < BINS; bin++)
        chi += ((double)bins[bin] - expected) * ((double)bins[bin] - expected) / expected;
    return chi;
}

/* The variance of all errors over that of a uniform error, 1/12. */
static double find_variance_ratio(float errors[ROWS][COLUMNS])
{
    double square = 0.0;
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < COLUMNS; i++)
            square += (double)errors[row][i] * (double)errors[row][i];
    return square * 12 / ((double)ROWS * COLUMNS);
}

/* The largest sum of the products of neighbouring errors, over the row or over the column, in
 * standard deviations of a sum of independent ones. */
static double find_correlation(float errors[ROWS][COLUMNS], int of_rows)
{
    const int outer = of_rows ? COLUMNS : ROWS, inner = of_rows ? ROWS : COLUMNS;
    double worst = 0.0;
    for (int a = !of_rows; a < outer; a++) {
        double sum = 0.0;
        for (int b = 1; b < inner; b++)
            sum += of_rows ? (double)errors[b][a] * (double)errors[b - 1][a]
                           : (double)errors[a][b] * (double)errors[a][b - 1];
        worst = fmax(worst, fabs(12 * sum / sqrt(inner)));
    }
    return worst;
}

/* Errors are uniform on [-1/2, 1/2) and independent. The dither has a fixed seed, so that the test
 * passes or fails for good. */
static void errors_are_uniform_and_independent(void **state)
{
    static float errors[ROWS][COLUMNS];
    for (int kind = 0; kind < HEAD_KINDS; kind++) {
        if (kind == HEAD_HOSTILE)
            continue; /* some of its rows are zero, and all errors of these are those of one row */
        generated_head head = generate_head((head_kind)kind, GUMBEL_FLOAT32, ROWS, COLUMNS, 1, 11);
        screened s = make_screened(*state, &head, 256, GUMBEL_SCREEN_PROBABLE);
        for (int row = 0; row < ROWS; row++)
            for (int i = 0; i < COLUMNS; i++)
                errors[row][i] = error_of(&s, row, i);
        double chi = test_uniformity(errors), variance = find_variance_ratio(errors);
        double columns = find_correlation(errors, 0), rows = find_correlation(errors, 1);
        print_message("%s: chi-squared %.1f of 15 degrees, variance %.4f / 12, correlations of "
                      "columns to %.1f, of rows to %.1f deviations\n",
                      head_kind_names[kind], chi, variance, columns, rows);
        assert_true(chi < 45.0); /* p = 10^-4 */
        assert_true(fabs(variance - 1.0) < 0.015);
        assert_true(columns < 5.0 && rows < 5.0);
        free(s.screen);
        free_generated_head(&head);
    }
}

/* The errors of logits take 1 / (c sqrt(12)) of the half width in the mean square, as sums of
 * independent uniform errors do. A constant that is 10% low, or errors that add up, change that. */
static void width_is_used_as_predicted(void **state)
{
    enum { WIDE = 2048, HIDDEN = TEST_SANITIZED ? 10 : 100 };
    static float h[WIDE];
    uint64_t random = 5;
    seen found = {0};
    generated_head head = generate_head(HEAD_STRUCTURED, GUMBEL_FLOAT32, ROWS, WIDE, 1, 11);
    screened s = make_screened(*state, &head, 256, GUMBEL_SCREEN_PROBABLE);
    for (int i = 0; i < HIDDEN; i++) {
        for (int64_t j = 0; j < WIDE; j++)
            h[j] = random_normal(&random);
        check_logits(&s, h, WHOLE, &found);
    }
    double used = sqrt(found.square / (double)found.checked);
    double predicted = 1 / (GUMBEL_SCREEN_DEVIATION * sqrt(12.0));
    print_message("%ld logits use %.4f of the half width, at most %.3f; a sum alone uses %.4f\n",
                  found.checked, used, found.max_used, predicted);
    assert_int_equal(found.outside, 0);
    /* Outlier columns and the other terms widen the bound by some percent. */
    assert_true(used < predicted * 1.02 && used > predicted * 0.93);
    free(s.screen);
    free_generated_head(&head);
}

/* Two screens without a seed have different dither, and both hold; a seed gives the same bytes. */
static void seeds_repeat_and_entropy_does_not(void **state)
{
    static const uint64_t seeds[2] = {7, 8};
    generated_head head = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 192, 100, 1, 11);
    gumbel_screen screens[4];
    for (int i = 0; i < 4; i++) {
        gumbel_screen_options options = {sizeof options, 0, 0, i < 2 ? &seeds[i] : NULL};
        screens[i] = make_screen(*state, &head.weight);
        assert_int_equal(
            gumbel_screen_prepare(*state, NULL, &head.weight, &options, &screens[i], NULL),
            GUMBEL_OK);
        assert_int_equal(gumbel_screen_verify(*state, NULL, &head.weight, &screens[i], NULL),
                         GUMBEL_OK);
    }
    gumbel_screen again = make_screen(*state, &head.weight);
    assert_memory_equal(again.data, screens[0].data, again.bytes);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(screens[i].data, screens[j].data, again.bytes);
    free(again.data);
    for (int i = 0; i < 4; i++)
        free(screens[i].data);
    free_generated_head(&head);
}

static int open_any(void **state)
{
    *state = open_device(GUMBEL_ISA_AUTO, 2, 0);
    return 0;
}

static int close_any(void **state)
{
    gumbel_close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_steps_need_dither),
        cmocka_unit_test(errors_are_uniform_and_independent),
        cmocka_unit_test(width_is_used_as_predicted),
        cmocka_unit_test(seeds_repeat_and_entropy_does_not),
    };
    return cmocka_run_group_tests_name("screen_dither", tests, open_any, close_any);
}
