/* SPDX-License-Identifier: Apache-2.0
 *
 * The intervals of a screen (docs/maths.md, section 14) over 2 * 10^6 pairs of a row of weights and
 * a hidden state, or 10^8 with GUMBEL_NIGHTLY: no logit is outside of its interval, and errors use
 * the widths as sums of independent uniform variables do.
 *
 * Independent pairs: weights of two Gaussian rows differ by many steps, so that their errors are
 * independent, also with equal dither, as are those of one row with two dithers. Two hidden states
 * share the errors of a row. Rows half a step off an integer all have the same errors. All rows
 * share the rounding of a hidden state to one plane; given it, Gaussian rows are independent.
 */
#include "fixtures.h"
#include "outcome.h"
#include "screen_intervals.h"
#include "statistics.h"
#include "test_scale.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    ROWS = 2048,
    COLUMNS = 256,
    BLOCK = 64,         /* rows whose bounds and widths are equal */
    STATES_OF_KIND = 8, /* hidden states of a kind with one dither */
    DITHERS_OF_HEAD = 8,
    DITHERS = TEST_SANITIZED ? 1 : 11, /* for each kind of head */
    NIGHTLY_DITHERS = TEST_SANITIZED ? 11 : 512,
    /* Dithers with which the law is tested: more would show that it is not quite normal. */
    LAW_DITHERS = 64,
    BINS = 20
};

typedef enum pair_head { GAUSSIAN, STRUCTURED, HALF_STEPS, LARGE_COLUMNS, HEADS } pair_head;
typedef enum hidden_kind { NORMAL, LEANING, OUTLIERS, HIDDEN_KINDS } hidden_kind;

static const char *const hidden_names[HIDDEN_KINDS] = {"Gaussian", "structured", "outliers"};

/* The bounds that are tested. */
static const struct {
    const char *name;
    gumbel_screen_format format;
    bound_kind kind;
    double constant; /* c */
} bounds[] = {{"bytes", GUMBEL_SCREEN_BYTES, BOUND_FINE, GUMBEL_SCREEN_DEVIATION},
              {"fine", GUMBEL_SCREEN_NIBBLES, BOUND_FINE, GUMBEL_SCREEN_NESTED_DEVIATION},
              {"coarse", GUMBEL_SCREEN_NIBBLES, BOUND_COARSE, GUMBEL_SCREEN_NESTED_DEVIATION},
              {"refined", GUMBEL_SCREEN_NIBBLES, BOUND_REFINED, GUMBEL_SCREEN_NESTED_DEVIATION}};
#define BOUNDS ((int)(sizeof bounds / sizeof *bounds))

typedef struct tally {
    long checked[HIDDEN_KINDS], outside;
    double max_used[HIDDEN_KINDS], square[HIDDEN_KINDS]; /* of |error| / width */
    /* Of Gaussian hidden states, and heads without large columns or half steps: pairs by
     * |error| / width, and their number by the normal law. */
    double found[BINS], predicted[BINS];
    int64_t law[BINS]; /* independent pairs by the normal distribution function of their error */
    /* Width over predicted deviation, over c sqrt(12); the largest with c 10% lower. */
    double min_ratio, max_ratio, max_low_ratio;
} tally;

static tally tallies[BOUNDS];

/* Weights, and both screens' integers q and n - 8: [block][column][row of the block]. */
static double weights[ROWS / BLOCK][COLUMNS][BLOCK];
static int16_t integers[BOUNDS][ROWS / BLOCK][COLUMNS][BLOCK];

/* A Gaussian head; with columns of different norms; with four columns 20 times as large; or with
 * all weights half a step off an integer, by bytes in even rows and by nibbles in odd ones. */
static generated_head make_head(pair_head kind, uint64_t seed)
{
    generated_head head = generate_head(kind == STRUCTURED ? HEAD_STRUCTURED : HEAD_GAUSSIAN,
                                        GUMBEL_FLOAT32, ROWS, COLUMNS, 1, seed);
    float *w = (float *)(uintptr_t)head.weight.data;
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
        const int64_t row = i / COLUMNS, column = i % COLUMNS;
        if (kind == LARGE_COLUMNS && column % 64 == 7)
            w[i] *= 20.0f;
        if (kind == HALF_STEPS)
            w[i] =
                0x1p-9f * (column == row * 79 % COLUMNS ? row % 2 ? 120.0f : 126.5f
                                                        : (float)random_below(&seed, 200) - 99.5f);
    }
    return head;
}

/* A hidden state: Gaussian; near a row of weights; or as this with four large dimensions. */
static void make_hidden(hidden_kind kind, const float *w, uint64_t *random, float *h)
{
    const float *row = w + (int64_t)random_below(random, ROWS) * COLUMNS;
    for (int i = 0; i < COLUMNS; i++) {
        h[i] = random_normal(random);
        if (kind != NORMAL)
            h[i] += 4.0f * row[i];
        if (kind == OUTLIERS && i % 37 == 7 && i < 4 * 37)
            h[i] *= 16.0f;
    }
}

/* Makes the screen of a seed again, and copies its integers. */
static void change_dither(gumbel_device *device, screened *s, uint64_t seed)
{
    const gumbel_screen_format format =
        (gumbel_screen_format)(s->header.layout == GUMBEL_SCREEN_LAYOUT_NIBBLES
                                   ? GUMBEL_SCREEN_NIBBLES
                                   : GUMBEL_SCREEN_BYTES);
    const gumbel_screen_options options = {sizeof options, GUMBEL_SCREEN_PROBABLE, format, &seed};
    const gumbel_screen screen = {s->screen, s->offsets.bytes, (int32_t)format};
    assert_int_equal(gumbel_screen_prepare(device, NULL, &s->head->weight, &options, &screen, NULL),
                     GUMBEL_OK);
    memcpy(&s->header, s->screen, sizeof s->header);
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t i = 0; i < COLUMNS; i++) {
            const int q = byte_of(s, row, i);
            for (int b = 0; b < BOUNDS; b++)
                if (bounds[b].format == format)
                    integers[b][row / BLOCK][i][row % BLOCK] =
                        (int16_t)(bounds[b].kind == BOUND_COARSE ? (q + 128) / 16 - 8 : q);
        }
}

static void sum_weights(double w[COLUMNS][BLOCK], const float *h, double *sums)
{
    for (int i = 0; i < COLUMNS; i++)
        for (int row = 0; row < BLOCK; row++)
            sums[row] += w[i][row] * (double)h[i];
}

static void sum_integers(int16_t q[COLUMNS][BLOCK], const int8_t *k, int32_t *sums)
{
    for (int i = 0; i < COLUMNS; i++) {
        const int16_t factor = k[i];
        for (int row = 0; row < BLOCK; row++)
            sums[row] += q[i][row] * factor;
    }
}

/* The spread of the errors of a block's rows, in steps. */
typedef struct spread {
    double square;       /* variance of the sum of e_j h_j */
    double total[BLOCK]; /* that, and the variance by rounding h to one plane at random */
    /* Mean and variances over random rows, where rounded hidden states and dither are given. */
    double mean, given[BLOCK];
} spread;

static spread find_spread(const screened *s, int b, int64_t block, const float *h,
                          const hidden_planes *planes)
{
    const int has_scales = bounds[b].format == GUMBEL_SCREEN_NIBBLES;
    const double scale = bounds[b].kind == BOUND_COARSE ? 16 : 1;
    const double unit = (double)planes->errors[bounds[b].kind].unit / scale;
    spread found = {0};
    for (int i = 0; i < COLUMNS; i++) {
        const uint32_t word = (uint32_t)dither_of(s)[i];
        const double x =
            (double)h[i] * (has_scales ? (double)gumbel_screen_scales[word % 16] : 1.0);
        found.square += x * x * scale * scale / 12;
        if (bounds[b].kind == BOUND_FINE)
            continue;
        const double y = rint(x / unit * 256) / 256, p = y - floor(y);
        const double rest = x - unit * planes->single[i];
        const double mean = (double)gumbel_screen_column_dither(word) * 0x1p-24 -
                            (bounds[b].kind == BOUND_COARSE ? 7.5 : 0);
        found.mean += mean * rest;
        for (int row = 0; row < BLOCK; row++) {
            const double v = scale * integers[b][block][i][row];
            found.total[row] += v * v * unit * unit * p * (1 - p);
            found.given[row] += (v - mean) * (v - mean) * rest * rest;
        }
    }
    for (int row = 0; row < BLOCK; row++) {
        found.total[row] += found.square;
        found.given[row] += found.square;
    }
    return found;
}

/* P(X < x) of a standard normal variable. */
static double normal_below(double x) { return erfc(-x * sqrt(0.5)) / 2; }

static void count_block(tally *t, const double *errors, const spread *by, double width,
                        int is_independent)
{
    for (int row = 0; row < BLOCK; row++) {
        const double bin_width = width / BINS / sqrt(by->total[row]);
        double above = 0.5;
        t->found[(int)fmin(fabs(errors[row]) / width * BINS, BINS - 1)]++;
        for (int bin = 0; bin < BINS && above > 1e-15; bin++) {
            const double next = normal_below(-bin_width * (bin + 1));
            t->predicted[bin] += 2 * (above - next);
            above = next;
        }
        const double normal = (errors[row] - by->mean) / sqrt(by->given[row]);
        if (is_independent)
            t->law[(int)fmin(normal_below(normal) * BINS, BINS - 1)]++;
    }
}

/* The width, less its terms beside both sums, over its prediction: c sqrt(12) times the deviation
 * of the sum of e_j h_j, plus that of the rounding of h if all its variances were 1/4. */
static double find_ratio(const screened *s, int b, int64_t block, double square,
                         gumbel_screen_hidden_error own)
{
    const gumbel_screen_block limits = block_of(s, block * BLOCK);
    const double unit = (double)own.unit / (bounds[b].kind == BOUND_COARSE ? 16 : 1);
    const double size = (double)limits.size;
    double width = (double)width_of(s, bounds[b].kind, &own, &limits), deviation = sqrt(square);
    width -= (size + (double)limits.error) * (double)own.rounding;
    if (bounds[b].kind == BOUND_FINE)
        width -= size * (double)own.residual;
    else
        deviation += size * unit / 2;
    return width / (bounds[b].constant * sqrt(12) * deviation);
}

static void check_widths(tally *t, const screened *s, int b, int64_t block, double square,
                         gumbel_screen_hidden_error own)
{
    double ratio = find_ratio(s, b, block, square, own);
    t->min_ratio = t->min_ratio > 0 ? fmin(t->min_ratio, ratio) : ratio;
    t->max_ratio = fmax(t->max_ratio, ratio);
    own.dithered *= 0.9f;
    t->max_low_ratio = fmax(t->max_low_ratio, find_ratio(s, b, block, square, own));
}

/* Checks the intervals of a block; the errors are in steps. */
static float check_intervals(tally *t, const screened *s, int b, int64_t block,
                             const hidden_planes *planes, hidden_kind kind, double *errors)
{
    const gumbel_screen_hidden_error *own = &planes->errors[bounds[b].kind];
    const gumbel_screen_block limits = block_of(s, block * BLOCK);
    const float width = width_of(s, bounds[b].kind, own, &limits);
    const int is_fine = bounds[b].kind == BOUND_FINE;
    const float plane = is_fine ? (float)s->plane : 0.0f;
    int32_t high[BLOCK] = {0}, low[BLOCK] = {0};
    if (is_fine)
        sum_integers(integers[b][block], planes->high, high);
    sum_integers(integers[b][block], is_fine ? planes->low : planes->single, low);
    for (int row = 0; row < BLOCK; row++) {
        const float step = step_of(s, block * BLOCK + row);
        const double exact = errors[row];
        float upper = gumbel_screen_bound_logit(step, own->unit, plane, width - own->shift,
                                                GUMBEL_SCREEN_TINY, high[row], low[row]);
        float lower = gumbel_screen_bound_logit(step, own->unit, plane, -width - own->shift,
                                                -GUMBEL_SCREEN_TINY, high[row], low[row]);
        double sum = (double)plane * high[row] + low[row];
        errors[row] = exact / (double)step - ((double)own->unit * sum - (double)own->shift);
        double used = fabs(errors[row]) / (double)width;
        t->outside += !(exact >= (double)lower && exact <= (double)upper);
        t->max_used[kind] = fmax(t->max_used[kind], used);
        t->square[kind] += used * used;
    }
    t->checked[kind] += BLOCK;
    return width;
}

/* Checks one hidden state with all rows and bounds. Each row enters the test of the law with one
 * Gaussian hidden state, of those with numbers `state` = 0 .. 7. */
static void check_hidden(const screened screens[2], pair_head head, hidden_kind kind,
                         const float *h, int state, int has_law)
{
    hidden_planes planes[2] = {split_hidden(&screens[0], h), split_hidden(&screens[1], h)};
    for (int64_t block = 0; block < ROWS / BLOCK; block++) {
        double exact[BLOCK] = {0};
        sum_weights(weights[block], h, exact);
        for (int b = 0; b < BOUNDS; b++) {
            const screened *s = &screens[bounds[b].format];
            const hidden_planes *own = &planes[bounds[b].format];
            double errors[BLOCK];
            memcpy(errors, exact, sizeof errors);
            float width = check_intervals(&tallies[b], s, b, block, own, kind, errors);
            if (kind != NORMAL || head > STRUCTURED)
                continue;
            const spread by = find_spread(s, b, block, h, own);
            count_block(&tallies[b], errors, &by, (double)width,
                        has_law && head == GAUSSIAN && block % STATES_OF_KIND == state);
            if (head == GAUSSIAN)
                check_widths(&tallies[b], s, b, block, by.square, own->errors[bounds[b].kind]);
        }
    }
    free(planes[0].high);
    free(planes[1].high);
}

static void check_head(gumbel_device *device, pair_head kind, int first, int end)
{
    static float h[COLUMNS];
    uint64_t random = (uint64_t)(first * HEADS) + kind + 1;
    generated_head head = make_head(kind, 1000 + random);
    const float *w = head.weight.data;
    screened screens[2];
    for (int format = 0; format < 2; format++)
        screens[format] =
            make_screened(device, &head, 256, GUMBEL_SCREEN_PROBABLE, (gumbel_screen_format)format);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        weights[i / COLUMNS / BLOCK][i % COLUMNS][i / COLUMNS % BLOCK] = (double)w[i];
    for (int dither = first; dither < end; dither++) {
        for (int format = 0; format < 2; format++)
            change_dither(device, &screens[format], (uint64_t)(dither * 2 + format) * HEADS + kind);
        for (int i = 0; i < HIDDEN_KINDS * STATES_OF_KIND; i++) {
            hidden_kind hidden = (hidden_kind)(i / STATES_OF_KIND);
            make_hidden(hidden, w, &random, h);
            check_hidden(screens, kind, hidden, h, i % STATES_OF_KIND, dither < LAW_DITHERS);
        }
    }
    free(screens[0].screen);
    free(screens[1].screen);
    free_generated_head(&head);
}

static void intervals_hold(void **state)
{
    const int dithers = is_nightly() ? NIGHTLY_DITHERS : DITHERS;
    for (int kind = 0; kind < HEADS; kind++)
        for (int first = 0; first < dithers; first += DITHERS_OF_HEAD)
            check_head(*state, (pair_head)kind, first,
                       first + DITHERS_OF_HEAD < dithers ? first + DITHERS_OF_HEAD : dithers);
    for (int b = 0; b < BOUNDS; b++) {
        const tally *t = &tallies[b];
        print_message("%s: %ld pairs, %ld outside", bounds[b].name,
                      t->checked[0] + t->checked[1] + t->checked[2], t->outside);
        for (int kind = 0; kind < HIDDEN_KINDS; kind++)
            print_message("; %s: rms %.4f, max %.3f", hidden_names[kind],
                          sqrt(t->square[kind] / (double)t->checked[kind]), t->max_used[kind]);
        print_message("\n");
        assert_int_equal(t->outside, 0);
    }
}

static double sum_bins(const double *bins, int first)
{
    double sum = 0;
    for (int bin = first; bin < BINS; bin++)
        sum += bins[bin];
    return sum;
}

/* Bounds with a fifth of the width, as with a constant that is a fifth, fail as often as the normal
 * law predicts: the test does detect violations. */
static void widths_are_used_as_predicted(void **state)
{
    (void)state;
    print_message("|error| / width, pairs of Gaussian hidden states: found, predicted\n%5s", "to");
    for (int b = 0; b < BOUNDS; b++)
        print_message(" %23s", bounds[b].name);
    for (int bin = 0; bin < BINS; bin++) {
        print_message("\n%5.2f", (bin + 1.0) / BINS);
        for (int b = 0; b < BOUNDS; b++)
            print_message(" %11.0f %11.4g", tallies[b].found[bin], tallies[b].predicted[bin]);
    }
    print_message("\n");
    for (int b = 0; b < BOUNDS; b++) {
        double found = sum_bins(tallies[b].found, BINS / 5);
        double predicted = sum_bins(tallies[b].predicted, BINS / 5);
        print_message("%s, c / 5: %.0f outside, predicted %.0f\n", bounds[b].name, found,
                      predicted);
        assert_true(found > 0);
        if (!TEST_SANITIZED)
            assert_true(found > predicted / 1.5 && found < predicted * 1.5);
    }
}

/* A constant 10% low is never violated, even by 10^8 pairs: P(|Y| > 0.9 c R) is below
 * 2 exp(-6 * 0.81 c^2) < 2^-66. The ratio of the width to the predicted deviation shows it. */
static void constants_are_in_widths(void **state)
{
    (void)state;
    for (int b = 0; b < BOUNDS; b++) {
        const tally *t = &tallies[b];
        print_message("%s: width over prediction %.5f to %.5f; with c 10%% low up to %.4f\n",
                      bounds[b].name, t->min_ratio, t->max_ratio, t->max_low_ratio);
        assert_true(t->min_ratio > 0.99 && t->max_ratio < 1.01);
        assert_true(t->max_low_ratio < 0.98);
    }
}

/* Errors of Gaussian rows and hidden states over their predicted deviations are normal. The test
 * uses independent pairs, one hidden state of a row and dither: 22,528, and 131,072 at night. A
 * deviation that is wrong by a fraction f adds 2 f^2 n to the statistic, whose mean is 19: it is
 * detected with a chance above 90% from 5%, and at night from 2%. The kurtosis of the sums, 3.3 / D
 * below the normal one, adds 1 to 4 at night. */
static void errors_are_normal(void **state)
{
    double probability[BINS];
    (void)state;
    for (int bin = 0; bin < BINS; bin++)
        probability[bin] = 1.0 / BINS;
    for (int b = 0; b < BOUNDS; b++) {
        chi_squared law = {0};
        int64_t pairs = 0;
        for (int bin = 0; bin < BINS; bin++)
            pairs += tallies[b].law[bin];
        chi_squared_add(&law, tallies[b].law, probability, BINS, pairs);
        double p = chi_squared_p(law.statistic, law.degrees);
        print_message("%s: chi-squared %.1f of %.0f degrees, p = %.3g, %ld independent pairs\n",
                      bounds[b].name, law.statistic, law.degrees, p, (long)pairs);
        assert_true(p > 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(intervals_hold), /* fills the tallies of the others */
        cmocka_unit_test(widths_are_used_as_predicted),
        cmocka_unit_test(constants_are_in_widths),
        cmocka_unit_test(errors_are_normal),
    };
    return cmocka_run_group_tests_name("screen_pairs", tests, open_two_threads, close_device);
}
