/* SPDX-License-Identifier: Apache-2.0
 *
 * The dither of a screen (docs/maths.md, section 14): quantization errors have the law that the
 * probable bound assumes, whatever the weights are; without dither the bound fails.
 */
#include "fixtures.h"
#include "outcome.h"
#include "screen_intervals.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Changes of the words of nibbles after which the laws of the errors do not hold. */
static uint32_t keep_first_dither(uint32_t word) { return (word & 0x0fffffffu) | 0x80000000u; }
static uint32_t repeat_first_dither(uint32_t word)
{
    return (word & 0x0fffffffu) | (word << 4 & 0xf0000000u);
}
static uint32_t round_down(uint32_t word) { return word & ~0xff0u; }

static void change_words(screened *s, uint32_t change(uint32_t word))
{
    for (int64_t i = 0; i < s->offsets.columns; i++)
        dither_of(s)[i] = (int32_t)change((uint32_t)dither_of(s)[i]);
    requantize(s);
}

/* Counts the logits of h = 1 that are outside of their bounds. */
static long count_outside(const screened *s, bound_kind kind)
{
    static float h[1024];
    seen found = {0};
    fill_ones(h, 1024);
    check_logits(s, h, kind, WHOLE, &found);
    print_message("%s: %ld of %ld outside\n", bound_names[kind], found.outside, found.checked);
    return found.outside;
}

/* Weights that are half a step off an integer have the largest error if they are rounded to the
 * nearest one: the probable bound fails without dither, and holds with it. */
static void half_steps_need_dither(void **state)
{
    generated_head head = generate_half_steps(1024, 1.0f);
    screened s = make_screened(*state, &head, 256, GUMBEL_SCREEN_PROBABLE, GUMBEL_SCREEN_BYTES);
    assert_int_equal(count_outside(&s, BOUND_FINE), 0);
    memset(dither_of(&s), 0, 1024 * sizeof(int32_t));
    requantize(&s);
    assert_int_equal(count_outside(&s, BOUND_FINE), 192);
    free(s.screen);
    s = make_screened(*state, &head, 256, GUMBEL_SCREEN_PROBABLE, GUMBEL_SCREEN_NIBBLES);
    for (int kind = 0; kind < BOUND_KINDS; kind++)
        assert_int_equal(count_outside(&s, (bound_kind)kind), 0);
    /* Hidden states of ones that are rounded down, too. */
    change_words(&s, round_down);
    assert_int_equal(count_outside(&s, BOUND_COARSE), 0);
    assert_true(count_outside(&s, BOUND_REFINED) > 96);
    change_words(&s, keep_first_dither);
    assert_int_equal(count_outside(&s, BOUND_FINE), 0);
    assert_true(count_outside(&s, BOUND_COARSE) > 96);
    free(s.screen);
    free((void *)(uintptr_t)head.weight.data);
}

/* The chi-squared statistic, of 63 degrees of freedom, of the coarse errors of a row of equal
 * weights, which show the dither itself. */
static double test_equal_weights(const screened *s)
{
    enum { BINS = 64 };
    const double expected = 1023.0 / BINS;
    long bins[BINS] = {0};
    double chi = 0.0;
    for (int64_t i = 1; i < 1024; i++)
        bins[(int)fmin(fmax(((double)error_of(s, BOUND_COARSE, 0, i) + 0.5) * BINS, 0),
                       BINS - 1)]++;
    for (int bin = 0; bin < BINS; bin++)
        chi += ((double)bins[bin] - expected) * ((double)bins[bin] - expected) / expected;
    return chi;
}

/* The dither of 16 steps is uniform: its upper part does not depend on its lower part. */
static void upper_dither_is_independent(void **state)
{
    generated_head head = generate_half_steps(1024, 1.0f);
    screened s = make_screened(*state, &head, 256, GUMBEL_SCREEN_PROBABLE, GUMBEL_SCREEN_NIBBLES);
    double with = test_equal_weights(&s);
    change_words(&s, repeat_first_dither);
    double without = test_equal_weights(&s);
    print_message("chi-squared of 63 degrees: %.1f, with repeated dither %.1f\n", with, without);
    assert_true(with < 115.0); /* p = 10^-4 */
    assert_true(without > 500.0);
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

/* Tests the errors of a screen, in units of their distance. */
static void check_errors(const screened *s, bound_kind kind, const char *name)
{
    static float errors[ROWS][COLUMNS];
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < COLUMNS; i++)
            errors[row][i] = error_of(s, kind, row, i);
    double chi = test_uniformity(errors), variance = find_variance_ratio(errors);
    double columns = find_correlation(errors, 0), rows = find_correlation(errors, 1);
    print_message("%s, %s: chi-squared %.1f of 15 degrees, variance %.4f / 12, correlations of "
                  "columns to %.1f, of rows to %.1f deviations\n",
                  name, bound_names[kind], chi, variance, columns, rows);
    assert_true(chi < 45.0); /* p = 10^-4 */
    assert_true(fabs(variance - 1.0) < 0.015);
    assert_true(columns < 5.0 && rows < 5.0);
}

/* Errors are uniform on [-1/2, 1/2) and independent. The dither has a fixed seed, so that the test
 * passes or fails for good. */
static void errors_are_uniform_and_independent(void **state)
{
    for (int kind = 0; kind < HEAD_KINDS; kind++) {
        if (kind == HEAD_HOSTILE)
            continue; /* some of its rows are zero, and all errors of these are those of one row */
        generated_head head = generate_head((head_kind)kind, GUMBEL_FLOAT32, ROWS, COLUMNS, 1, 11);
        for (int format = 0; format < 2; format++) {
            screened s = make_screened(*state, &head, 256, GUMBEL_SCREEN_PROBABLE,
                                       (gumbel_screen_format)format);
            check_errors(&s, BOUND_FINE, head_kind_names[kind]);
            if (format == GUMBEL_SCREEN_NIBBLES)
                check_errors(&s, BOUND_COARSE, head_kind_names[kind]);
            free(s.screen);
        }
        free_generated_head(&head);
    }
}

/* The errors of logits take 1 / (c sqrt(12)) of the half width in the mean square, as sums of
 * independent uniform errors do. A constant that is 10% low, or errors that add up, change that. */
static double find_width_used(gumbel_device *device, gumbel_screen_format format, bound_kind kind)
{
    enum { WIDE = 2048, HIDDEN = TEST_SANITIZED ? 50 : 100 };
    static float h[WIDE];
    uint64_t random = 5;
    seen found = {0};
    generated_head head = generate_head(HEAD_STRUCTURED, GUMBEL_FLOAT32, ROWS, WIDE, 1, 11);
    screened s = make_screened(device, &head, 256, GUMBEL_SCREEN_PROBABLE, format);
    for (int i = 0; i < HIDDEN; i++) {
        for (int64_t j = 0; j < WIDE; j++)
            h[j] = random_normal(&random);
        check_logits(&s, h, kind, WHOLE, &found);
    }
    double used = sqrt(found.square / (double)found.checked);
    print_message("%s: %ld logits use %.4f of the half width, at most %.3f\n", bound_names[kind],
                  found.checked, used, found.max_used);
    assert_int_equal(found.outside, 0);
    free(s.screen);
    free_generated_head(&head);
    return used;
}

/* Outlier columns and other terms widen a bound by some percent; the rounding of hidden states to a
 * single plane widens coarse bounds by 10% more. */
static void width_is_used_as_predicted(void **state)
{
    double predicted = 1 / (GUMBEL_SCREEN_DEVIATION * sqrt(12.0));
    double nested = 1 / (GUMBEL_SCREEN_NESTED_DEVIATION * sqrt(12.0));
    double bytes = find_width_used(*state, GUMBEL_SCREEN_BYTES, BOUND_FINE);
    double fine = find_width_used(*state, GUMBEL_SCREEN_NIBBLES, BOUND_FINE);
    double coarse = find_width_used(*state, GUMBEL_SCREEN_NIBBLES, BOUND_COARSE);
    double refined = find_width_used(*state, GUMBEL_SCREEN_NIBBLES, BOUND_REFINED);
    print_message("sums alone use %.4f and %.4f\n", predicted, nested);
    assert_true(bytes < predicted * 1.02 && bytes > predicted * 0.93);
    assert_true(fine < nested * 1.02 && fine > nested * 0.93);
    assert_true(coarse < nested * 0.90 && coarse > nested * 0.83);
    assert_true(refined < nested * 0.552 && refined > nested * 0.51);
}

/* The statement behind a row's bounds by bytes, and the four by nibbles, fail with a chance of at
 * most 2^-82. */
static void constants_give_the_chance(void **state)
{
    (void)state;
    double bytes = 6 * GUMBEL_SCREEN_DEVIATION * GUMBEL_SCREEN_DEVIATION;
    double nibbles = 6 * GUMBEL_SCREEN_NESTED_DEVIATION * GUMBEL_SCREEN_NESTED_DEVIATION;
    assert_true(2 * exp(-bytes) < 0x1p-82);
    assert_true(4 * 2 * exp(-nibbles) < 0x1p-82);
}

/* Two screens without a seed have different dither, and both hold; a seed gives the same bytes. */
/* Scales without a table are those of the table; both layouts of tiles have the same offsets. */
static void layouts_agree(void **state)
{
    const gumbel_screen_layout bytes = GUMBEL_SCREEN_LAYOUT_TILES;
    const gumbel_screen_layout nibbles = GUMBEL_SCREEN_LAYOUT_NIBBLE_TILES;
    (void)state;
    for (int i = 0; i < GUMBEL_SCREEN_SCALES; i++) {
        assert_true(gumbel_screen_compute_scale(i) == gumbel_screen_scales[i]);
        assert_true(gumbel_screen_compute_inverse_scale(i) == gumbel_screen_inverse_scales[i]);
    }
    for (int64_t rows = 1; rows < 1000; rows += 61)
        for (int64_t columns = 1; columns < 700; columns += 53) {
            gumbel_screen_offsets a, b;
            assert_true(gumbel_screen_find_offsets_as(bytes, rows, columns, &a));
            assert_true(gumbel_screen_find_offsets_as(nibbles, rows, columns, &b));
            assert_memory_equal(&a, &b, sizeof a);
        }
}

static void check_seeds(gumbel_device *device)
{
    static const uint64_t seeds[2] = {7, 8};
    generated_head head = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 192, 100, 1, 11);
    gumbel_screen screens[4];
    for (int i = 0; i < 4; i++) {
        gumbel_screen_options options = {sizeof options, 0, format_under_test,
                                         i < 2 ? &seeds[i] : NULL};
        screens[i] = make_screen(device, &head.weight);
        assert_int_equal(
            gumbel_screen_prepare(device, NULL, &head.weight, &options, &screens[i], NULL),
            GUMBEL_OK);
        assert_int_equal(gumbel_screen_verify(device, NULL, &head.weight, &screens[i], NULL),
                         GUMBEL_OK);
    }
    gumbel_screen again =
        make_screen_as(device, &head.weight, GUMBEL_SCREEN_PROBABLE, format_under_test);
    assert_memory_equal(again.data, screens[0].data, again.bytes);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(screens[i].data, screens[j].data, again.bytes);
    free(again.data);
    for (int i = 0; i < 4; i++)
        free(screens[i].data);
    free_generated_head(&head);
}

static void seeds_repeat_and_entropy_does_not(void **state)
{
    for (int format = 0; format < 2; format++) {
        format_under_test = (gumbel_screen_format)format;
        check_seeds(*state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_steps_need_dither),
        cmocka_unit_test(upper_dither_is_independent),
        cmocka_unit_test(errors_are_uniform_and_independent),
        cmocka_unit_test(width_is_used_as_predicted),
        cmocka_unit_test(constants_give_the_chance),
        cmocka_unit_test(layouts_agree),
        cmocka_unit_test(seeds_repeat_and_entropy_does_not),
    };
    return cmocka_run_group_tests_name("screen_dither", tests, open_two_threads, close_device);
}
