/* SPDX-License-Identifier: Apache-2.0
 *
 * The bounds of a screen (docs/maths.md, section 14): every logit is within its bounds, on
 * adversarial rows and hidden states; the tests detect each omitted term of the bound; sums and
 * bytes are equal on every instruction set.
 */
#include "cpu/cpu_screen_kernel.h"
#include "cpu/host/cpu_dispatch.h"
#include "gumbel/screen.h"
#include "generated_heads.h"
#include "outcome.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* A term of the bound that is omitted or too small. */
typedef enum mutant {
    WHOLE,
    SMALL_ENTRY,
    SMALL_ERROR,
    NO_RESIDUAL,
    NO_ROUNDING,
    NO_SHIFT,
    MUTANTS
} mutant;

static const char *const mutant_names[MUTANTS] = {"the bound",   "entries 10% low", "E 3% low",
                                                  "no residual", "no rounding",     "no shift"};

/* The fractions of their half widths that the errors of logits take. */
typedef struct seen {
    long checked, outside;
    double max_used, square; /* largest; sum of squares */
} seen;

static void add_seen(seen *all, const seen *own)
{
    all->checked += own->checked;
    all->outside += own->outside;
    all->square += own->square;
    all->max_used = own->max_used > all->max_used ? own->max_used : all->max_used;
}

typedef struct screened {
    const generated_head *head;
    unsigned char *screen;
    gumbel_screen_header header;
    gumbel_screen_offsets offsets;
    int plane;
} screened;

static double gamma_of(int64_t columns)
{
    return (double)((columns + 31) / 32 * 2 + 4) * 0x1p-24 * 1.001;
}

static int byte_of(const screened *s, int64_t row, int64_t i)
{
    const uint8_t *tile = s->screen + s->offsets.copy + row / 16 * 16 * s->offsets.columns;
    return tile[i / 64 * 1024 + i % 64 / 4 * 64 + row % 16 * 4 + i % 4] - 128;
}

static float step_of(const screened *s, int64_t row)
{
    return ((const float *)(const void *)(s->screen + s->offsets.steps))[row];
}

static const int32_t *dither_of(const screened *s)
{
    return (const int32_t *)(const void *)(s->screen + s->offsets.dither);
}

/* The quantization error of a weight, in steps. */
static float error_of(const screened *s, int64_t row, int64_t i)
{
    const gumbel_tensor *w = &s->head->weight;
    return dtype_load(w->data, w->dtype, row * w->cols + i) / step_of(s, row) -
           (float)byte_of(s, row, i) + (float)dither_of(s)[i] * GUMBEL_SCREEN_DITHER_UNIT;
}

/* The library's logits of hidden state h, packed by the contract of the dot product. */
static void multiply(const screened *s, const float *h, float *logits)
{
    const gumbel_tensor *w = &s->head->weight;
    int64_t chunks = (w->cols + 31) / 32;
    float *packed = make_zeroed((size_t)chunks * 32, sizeof *packed);
    for (int64_t i = 0; i < w->cols; i++) {
        int place = (int)(i % 32);
        place = w->dtype == GUMBEL_BFLOAT16 ? place / 2 + place % 2 * 16 : place;
        packed[i / 32 * 32 + place] = h[i];
    }
    cpu_product product = {.weight = w->data,
                           .dtype = w->dtype,
                           .stride_bytes = w->cols * (int64_t)dtype_size(w->dtype),
                           .hidden_size = w->cols,
                           .count = (int)w->rows,
                           .panels = packed,
                           .batch = 1,
                           .out = logits,
                           .out_stride = w->rows};
    cpu_reference_kernels.multiply_tile(&product);
    free(packed);
}

static void mutate(mutant m, gumbel_screen_hidden_error *hidden_error, gumbel_screen_block *block)
{
    if (m == SMALL_ENTRY && hidden_error->outlier_sum > 0.0f)
        hidden_error->outlier_sum *= 0.9f;
    else if (m == SMALL_ENTRY)
        hidden_error->dithered *= 0.9f;
    if (m == NO_SHIFT)
        hidden_error->shift = 0.0f;
    if (m == SMALL_ERROR)
        block->error *= 0.97f;
    if (m == NO_RESIDUAL)
        hidden_error->residual = 0.0f;
    if (m == NO_ROUNDING)
        hidden_error->rounding = 0.0f;
}

/* Whether all logits of hidden state h are within their bounds. */
static void check_row(const screened *s, const float *h, mutant m, seen *into)
{
    int64_t columns = s->head->weight.cols, rows = s->head->weight.rows;
    int8_t *planes = make_zeroed((size_t)s->offsets.columns * 2, 1);
    float *logits = make_zeroed((size_t)rows, sizeof *logits);
    gumbel_screen_planes to = {s->plane, planes, planes + s->offsets.columns, 64};
    gumbel_screen_hidden_error hidden_error;
    assert_true(gumbel_screen_split_hidden(h, columns, &s->header, dither_of(s), gamma_of(columns),
                                           &to, &hidden_error));
    multiply(s, h, logits);
    for (int64_t row = 0; row < rows; row++) {
        int32_t high = 0, low = 0;
        gumbel_screen_block block =
            ((const gumbel_screen_block *)(const void *)(s->screen + s->offsets.bounds))[row / 64];
        gumbel_screen_hidden_error own = hidden_error;
        mutate(m, &own, &block);
        for (int64_t i = 0; i < columns; i++) {
            const int byte = byte_of(s, row, i);
            high += byte * to.high[i];
            low += byte * to.low[i];
        }
        float width = gumbel_screen_error_width(&own, &block), step = step_of(s, row);
        float upper = gumbel_screen_bound_logit(step, own.unit, (float)s->plane, width - own.shift,
                                                GUMBEL_SCREEN_TINY, high, low);
        float lower = gumbel_screen_bound_logit(step, own.unit, (float)s->plane, -width - own.shift,
                                                -GUMBEL_SCREEN_TINY, high, low);
        double middle = ((double)upper + (double)lower) / 2, half = (double)upper - middle;
        double used = half > 0 ? fabs((double)logits[row] - middle) / half : 0;
        into->checked++;
        into->outside += !(logits[row] >= lower && logits[row] <= upper);
        into->max_used = used > into->max_used ? used : into->max_used;
        into->square += used * used;
    }
    free(planes);
    free(logits);
}

static screened screen_of(gumbel_device *device, const generated_head *head, int plane,
                          gumbel_screen_certificate certificate)
{
    screened s = {.head = head,
                  .screen = make_screen_as(device, &head->weight, certificate).data,
                  .plane = plane};
    memcpy(&s.header, s.screen, sizeof s.header);
    assert_true(gumbel_screen_find_offsets(head->weight.rows, head->weight.cols, &s.offsets));
    return s;
}

/* Hidden states: as generated, one dimension alone or 3000 times larger, tiny, large, of one sign,
 * below the planes, or parallel to the quantization error of a row, where Cauchy's inequality is
 * tight. The last two depend on the dither, so that only certain bounds hold. */
static void make_hidden(const screened *s, int kind, uint64_t *state, float *h)
{
    int64_t row = kind - 9;
    for (int64_t i = 0; i < s->head->weight.cols; i++) {
        float x = random_normal(state);
        switch (kind) {
        case 1:
            x *= i == 5 ? 3000 : 1;
            break;
        case 2:
            x = i == 5 ? 1.0f : 0.0f;
            break;
        case 3:
            x *= 1e-20f;
            break;
        case 4:
            x *= 1e10f;
            break;
        case 5:
            x = expf(4 * x);
            break;
        case 6:
            x = 1.0f;
            break;
        case 7:
            x = 0.0f;
            break;
        case 8: /* the planes round all dimensions to 0 except one; along row 6 */
            x = i == 5 ? 1.0f : 0x1p-15f * 0.4f * (float)(byte_of(s, 6, i) < 0 ? -1 : 1);
            break;
        default:
            if (kind > 8)
                x = error_of(s, row, i);
        }
        h[i] = x;
    }
}

#define HIDDEN_KINDS             (9 + 24)
#define HIDDEN_INDEPENDENT_KINDS 8

static seen check_head(gumbel_device *device, head_kind kind, gumbel_dtype dtype, int64_t columns,
                       int plane, gumbel_screen_certificate certificate, mutant m)
{
    const int kinds =
        certificate == GUMBEL_SCREEN_CERTAIN ? HIDDEN_KINDS : HIDDEN_INDEPENDENT_KINDS;
    seen found = {0};
    uint64_t state = 9;
    generated_head head = generate_head(kind, dtype, 192, columns, 1, 11);
    screened s = screen_of(device, &head, plane, certificate);
    float *h = make_zeroed((size_t)columns, sizeof *h);
    for (int i = 0; i < kinds; i++) {
        make_hidden(&s, i, &state, h);
        check_row(&s, h, m, &found);
    }
    free(h);
    free(s.screen);
    free_generated_head(&head);
    return found;
}

static seen check_all_heads(gumbel_device *device, gumbel_screen_certificate certificate)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_BFLOAT16, GUMBEL_FLOAT32, GUMBEL_FLOAT16};
    static const int64_t columns[] = {1, 33, 64, 200, 1024};
    seen all = {0};
    for (int kind = 0; kind < HEAD_KINDS; kind++)
        for (int i = 0; i < 15; i++)
            for (int plane = 128; plane <= 256; plane *= 2) {
                /* float16 cannot represent weights of 1e6 */
                if (kind == HEAD_HOSTILE && dtypes[i / 5] == GUMBEL_FLOAT16)
                    continue;
                if (TEST_SANITIZED && columns[i % 5] == 1024 && i / 5 != kind % 3)
                    continue;
                seen own = check_head(device, (head_kind)kind, dtypes[i / 5], columns[i % 5], plane,
                                      certificate, WHOLE);
                if (own.outside)
                    print_error("%s, %s, D %d, planes of %d: %ld outside\n", head_kind_names[kind],
                                dtype_name(dtypes[i / 5]), (int)columns[i % 5], plane, own.outside);
                add_seen(&all, &own);
            }
    print_message("%ld intervals, the worst uses %.3f of its half\n", all.checked, all.max_used);
    assert_int_equal(all.outside, 0);
    return all;
}

static void every_logit_is_within(void **state)
{
    seen certain = check_all_heads(*state, GUMBEL_SCREEN_CERTAIN);
    seen probable = check_all_heads(*state, GUMBEL_SCREEN_PROBABLE);
    assert_true(certain.max_used > 0.9 && certain.max_used <= 1.0);
    /* A hidden state of one column uses its half. */
    assert_true(probable.max_used > 0.9 && probable.max_used <= 1.0);
}

static void mutants_are_caught(void **state)
{
    for (int m = SMALL_ENTRY; m <= NO_RESIDUAL; m++) {
        seen own = check_head(*state, HEAD_HOSTILE, GUMBEL_BFLOAT16, 1024, 256,
                              GUMBEL_SCREEN_CERTAIN, (mutant)m);
        seen other = check_head(*state, HEAD_GAUSSIAN, GUMBEL_FLOAT32, 64, 256,
                                GUMBEL_SCREEN_CERTAIN, (mutant)m);
        print_message("%s: %ld and %ld outside\n", mutant_names[m], own.outside, other.outside);
        assert_true(own.outside + other.outside > 0);
    }
    for (int i = 0; i < 2; i++) {
        mutant m = i ? NO_SHIFT : SMALL_ENTRY;
        seen own =
            check_head(*state, HEAD_GAUSSIAN, GUMBEL_FLOAT32, 1024, 256, GUMBEL_SCREEN_PROBABLE, m);
        print_message("probable, %s: %ld outside\n", mutant_names[m], own.outside);
        assert_true(own.outside > 0);
    }
}

/* Makes the screen again without dither: all weights are rounded to the nearest integer. */
static void remove_dither(screened *s)
{
    const gumbel_tensor *w = &s->head->weight;
    int64_t stride = w->cols * (int64_t)dtype_size(w->dtype);
    int32_t *dither = (int32_t *)(void *)(s->screen + s->offsets.dither);
    memset(dither, 0, (size_t)s->offsets.columns * sizeof *dither);
    for (int64_t block = 0; block < s->offsets.blocks; block++) {
        cpu_quantized_rows rows = {.dtype = w->dtype,
                                   .stride_bytes = stride,
                                   .hidden_size = w->cols,
                                   .dither = dither,
                                   .count = 16};
        assert_int_equal(w->rows % 64, 0);
        for (int64_t first = block * 64; first < block * 64 + 64; first += 16) {
            rows.weight = (const char *)w->data + first * stride;
            rows.steps = (float *)(void *)(s->screen + s->offsets.steps) + first;
            rows.copy = s->screen + s->offsets.copy + first * s->offsets.columns;
            cpu_reference_kernels.quantize_rows(&rows);
        }
        ((gumbel_screen_block *)(void *)(s->screen + s->offsets.bounds))[block] = rows.bound;
        s->header.error = fmaxf(block ? s->header.error : 0.0f, rows.bound.error);
    }
}

/* Rows of equal weights w, 62.5 steps and a little more, beside one of 126.5 steps. Each is rounded
 * to 63 without dither, so that with h = 1 all quantization errors have one sign and the largest
 * sum. */
static generated_head generate_half_steps(int64_t columns, float w)
{
    const int64_t rows = 192;
    float *weight = make_zeroed((size_t)(rows * columns), sizeof *weight);
    for (int64_t i = 0; i < rows * columns; i++)
        weight[i] = (i / columns % 2 ? -w : w) * (i % columns ? 1.0f : 126.5f / 62.501f);
    return (generated_head){{weight, GUMBEL_FLOAT32, rows, columns, 0, {0}}, {0}};
}

static void fill_ones(float *h, int64_t columns)
{
    for (int64_t i = 0; i < columns; i++)
        h[i] = 1.0f;
}

/* The rounding error of the library's product is small compared with the slack of Cauchy's
 * inequality, unless the quantization errors are parallel to h and each of a lane's sums rounds in
 * their direction. */
static void rounding_term_is_needed(void **state)
{
    enum { COLUMNS = 8192 };
    seen whole = {0}, without = {0};
    static float h[COLUMNS];
    /* A lane adds 512 equal terms: from 2^8 to 2^9 all of them lose almost half an ulp, which is
     * 2^-15 there. */
    generated_head head = generate_half_steps(COLUMNS, 1.0f - 20 * 0x1p-15f + 0.49f * 0x1p-15f);
    screened s = screen_of(*state, &head, 256, GUMBEL_SCREEN_CERTAIN);
    remove_dither(&s);
    fill_ones(h, COLUMNS);
    check_row(&s, h, WHOLE, &whole);
    check_row(&s, h, NO_ROUNDING, &without);
    print_message("%s: %ld outside\n", mutant_names[NO_ROUNDING], without.outside);
    assert_int_equal(whole.outside, 0);
    assert_true(without.outside > 0);
    free(s.screen);
    free((void *)(uintptr_t)head.weight.data);
}

/* ------------------------------------------------------------------------------ dither ---- */

/* Weights that are half a step off an integer have the largest error if they are rounded to the
 * nearest one: the probable bound fails without dither, and holds with it. */
static void half_steps_need_dither(void **state)
{
    enum { COLUMNS = 1024 };
    static float h[COLUMNS];
    seen with = {0}, without = {0};
    generated_head head = generate_half_steps(COLUMNS, 1.0f);
    screened s = screen_of(*state, &head, 256, GUMBEL_SCREEN_PROBABLE);
    fill_ones(h, COLUMNS);
    check_row(&s, h, WHOLE, &with);
    remove_dither(&s);
    check_row(&s, h, WHOLE, &without);
    print_message("with dither %ld of %ld outside, without %ld\n", with.outside, with.checked,
                  without.outside);
    assert_int_equal(with.outside, 0);
    assert_int_equal(without.outside, without.checked);
    free(s.screen);
    free((void *)(uintptr_t)head.weight.data);
}

/* Errors are uniform on [-1/2, 1/2) and independent: a chi-squared test of each column's and each
 * row's errors in 16 bins, and of all errors; correlations of columns, and of rows. The dither has
 * a fixed seed, so that the test passes or fails for good. */
static void errors_are_uniform_and_independent(void **state)
{
    enum { COLUMNS = 512, BINS = 16 };
    static double errors[192][COLUMNS];
    for (int kind = 0; kind < HEAD_KINDS; kind++) {
        if (kind == HEAD_HOSTILE)
            continue; /* some of its rows are zero, and all errors of these are those of one row */
        generated_head head = generate_head((head_kind)kind, GUMBEL_FLOAT32, 192, COLUMNS, 1, 11);
        screened s = screen_of(*state, &head, 256, GUMBEL_SCREEN_PROBABLE);
        long bins[BINS] = {0};
        double chi = 0.0, worst_row = 0.0, worst_column = 0.0, square = 0.0;
        for (int row = 0; row < 192; row++)
            for (int i = 0; i < COLUMNS; i++) {
                double e = error_of(&s, row, i);
                errors[row][i] = e;
                square += e * e;
                bins[(int)fmin(fmax((e + 0.5) * BINS, 0), BINS - 1)]++;
            }
        for (int bin = 0; bin < BINS; bin++) {
            double expected = 192.0 * COLUMNS / BINS;
            chi += ((double)bins[bin] - expected) * ((double)bins[bin] - expected) / expected;
        }
        for (int row = 1; row < 192; row++) {
            double sum = 0.0;
            for (int i = 1; i < COLUMNS; i++)
                sum += errors[row][i] * errors[row][i - 1];
            worst_column = fmax(worst_column, fabs(12 * sum / sqrt(COLUMNS)));
        }
        for (int i = 0; i < COLUMNS; i++) {
            double sum = 0.0;
            for (int row = 1; row < 192; row++)
                sum += errors[row][i] * errors[row - 1][i];
            worst_row = fmax(worst_row, fabs(12 * sum / sqrt(192)));
        }
        print_message("%s: chi-squared %.1f of 15 degrees, variance %.4f / 12, correlations of "
                      "columns to %.1f, of rows to %.1f deviations\n",
                      head_kind_names[kind], chi, square * 12 / (192.0 * COLUMNS), worst_column,
                      worst_row);
        assert_true(chi < 45.0); /* p = 10^-4 */
        assert_true(fabs(square * 12 / (192.0 * COLUMNS) - 1.0) < 0.015);
        assert_true(worst_column < 5.0 && worst_row < 5.0);
        free(s.screen);
        free_generated_head(&head);
    }
}

/* The errors of logits take 1 / (c sqrt(12)) of the half width in the mean square, as sums of
 * independent uniform errors do. A constant that is 10% low, or errors that add up, change that. */
static void width_is_used_as_predicted(void **state)
{
    enum { COLUMNS = 2048, HIDDEN = TEST_SANITIZED ? 10 : 100 };
    static float h[COLUMNS];
    uint64_t random = 5;
    seen found = {0};
    generated_head head = generate_head(HEAD_STRUCTURED, GUMBEL_FLOAT32, 192, COLUMNS, 1, 11);
    screened s = screen_of(*state, &head, 256, GUMBEL_SCREEN_PROBABLE);
    for (int i = 0; i < HIDDEN; i++) {
        for (int64_t j = 0; j < COLUMNS; j++)
            h[j] = random_normal(&random);
        check_row(&s, h, WHOLE, &found);
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

/* With hidden states of a few units of the smallest float, terms of the bound are subnormal, and
 * large weights magnify their rounding. With weights as small, the header still bounds the largest
 * norm of a row, which gumbel_screen_verify() checks. */
static void subnormal_terms_are_covered(void **state)
{
    enum { COLUMNS = 5, ROWS = 192 };
    uint64_t random = 23;
    seen all = {0};
    float h[COLUMNS];
    for (int round = 0; round < (TEST_SANITIZED ? 100 : 1000); round++) {
        float *weight = make_zeroed(ROWS * COLUMNS, sizeof *weight);
        int exponent = round % 4 ? 108 + (int)random_below(&random, 19) : -140;
        uint32_t units = 1u << random_below(&random, 11);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            float size = 1.0f - (float)random_below(&random, 1 << 16) * 0x1p-22f;
            weight[i] = ldexpf(random_below(&random, 2) ? size : -size, exponent);
        }
        for (int i = 0; i < COLUMNS; i++)
            h[i] = (float)(1 + random_below(&random, units)) *
                   (random_below(&random, 2) ? 0x1p-149f : -0x1p-149f);
        generated_head head = {{weight, GUMBEL_FLOAT32, ROWS, COLUMNS, 0, {0}}, {0}};
        gumbel_screen_certificate certificate =
            round % 2 ? GUMBEL_SCREEN_CERTAIN : GUMBEL_SCREEN_PROBABLE;
        screened s = screen_of(*state, &head, 256, certificate);
        const gumbel_screen screen = {s.screen, s.offsets.bytes};
        assert_int_equal(gumbel_screen_verify(*state, NULL, &head.weight, &screen, NULL),
                         GUMBEL_OK);
        check_row(&s, h, WHOLE, &all);
        free(s.screen);
        free(weight);
    }
    print_message("%ld of %ld logits are outside of their bounds\n", all.outside, all.checked);
    assert_int_equal(all.outside, 0);
}

/* The rounding error of computing a bound is below 2^-21 of step * unit * size * steps. No logit
 * reveals this part of `residual`, as the bound of the product's rounding leaves room for it; here
 * a twentieth of it is not enough. */
static void bounds_round_outward(void **state)
{
    (void)state;
    uint64_t random = 17;
    long beyond = 0, tight = 0;
    for (int i = 0; i < (TEST_SANITIZED ? 100000 : 1000000); i++) {
        /* Sums near what their norms allow, of either sign, or cancelling. */
        int32_t high = (int32_t)random_below(&random, 1 << 30) - (1 << 29);
        int32_t low = i % 3 ? (int32_t)random_below(&random, 1 << 30) - (1 << 29)
                            : -(int32_t)((int64_t)high * 256 % (1 << 30));
        float unit = 0x1p-15f * (1 + (float)random_below(&random, 1 << 20) * 0x1p-20f);
        float step = 0x1p-9f * (1 + (float)random_below(&random, 1 << 20) * 0x1p-20f);
        float end = gumbel_screen_bound_logit(step, unit, 256.0f, 0.0f, 0.0f, high, low);
        double t = 256.0 * high + low, room = (256.0 * abs(high) + abs(low)) * (double)unit;
        double off = fabs((double)end - (double)step * ((double)unit * t)) / (double)step;
        beyond += off > 0x1p-21 * room;
        tight += off > 0x1p-21 / 20 * room;
    }
    assert_int_equal(beyond, 0);
    assert_true(tight > 0);
}

/* The computed tanh may decrease, by less than the 2^-20 of the cap that is added to bounds. */
static void caps_are_lifted_enough(void **state)
{
    /* Some floats from 2^-31 to 16, and all around the boundary at 0.625. */
    static const uint32_t ranges[2][3] = {{0x30000000u, 0x41800000u, TEST_SANITIZED ? 377 : 37},
                                          {0x3f1e0000u, 0x3f220000u, 1}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        float most = 0.0f, fall = 0.0f;
        for (uint32_t bits = ranges[i][0]; bits < ranges[i][1]; bits += ranges[i][2]) {
            float y = gumbel_tanh(gumbel_float_of(bits));
            fall = most - y > fall ? most - y : fall;
            most = y > most ? y : most;
        }
        print_message("tanh falls by %.3g at most\n", (double)fall);
        assert_true(fall < 0x1p-21f);
    }
}

/* ------------------------------------------------------------------- instruction sets ---- */

static void same_bytes_everywhere(void **state)
{
    gumbel_isa isas[4];
    int count = list_isas(isas);
    (void)state;
    for (int kind = 0; kind < HEAD_KINDS; kind++)
        for (int i = 1; i < count; i++) {
            gumbel_device *first = open_device(isas[0], 1, 0), *other = open_device(isas[i], 3, 0);
            generated_head head = generate_head((head_kind)kind, GUMBEL_BFLOAT16, 1000, 199, 1, 5);
            gumbel_screen a = make_screen(first, &head.weight);
            gumbel_screen b = make_screen(other, &head.weight);
            assert_int_equal(a.bytes, b.bytes);
            assert_memory_equal(a.data, b.data, a.bytes);
            assert_int_equal(gumbel_screen_verify(other, NULL, &head.weight, &a, NULL), GUMBEL_OK);
            free(a.data);
            free(b.data);
            free_generated_head(&head);
            gumbel_close(first);
            gumbel_close(other);
        }
}

/* Every integer product against plain sums, at the largest bytes, too. */
static void check_sums(const cpu_screen_kernel *product, int rows, int64_t columns, int largest)
{
    uint64_t random = (uint64_t)columns;
    int8_t *planes = make_zeroed((size_t)(2 * rows * columns), 1);
    uint8_t *copy = make_zeroed((size_t)(64 * columns), 1);
    int32_t start[2 * CPU_SCREEN_PANEL_MAX] = {0};
    static int32_t own[CPU_SCREEN_SUMS] __attribute__((aligned(64)));
    static int32_t plain[CPU_SCREEN_SUMS] __attribute__((aligned(64)));
    int half = product->plane / 2;
    for (int64_t i = 0; i < 64 * columns; i++)
        copy[i] = largest ? 255 : (uint8_t)(1 + random_below(&random, 255));
    for (int64_t i = 0; i < 2 * rows * columns; i++) {
        int b = (int)(i / 64 % (2 * rows));
        int h = (int)random_below(&random, (uint32_t)product->plane) - half;
        h = largest ? (b % 2 ? -half : half - 1) : h;
        planes[i] = (int8_t)h;
        start[b] -= 128 * h;
    }
    cpu_screen_product call = {copy, columns, planes, rows, start, own};
    product->sum_products(&call);
    call.sums = plain;
    cpu_screen_plain.sum_products(&call);
    assert_memory_equal(own, plain, (size_t)(4 * 2 * rows * 16) * sizeof *own);
    free(planes);
    free(copy);
}

static void check_product(const cpu_screen_kernel *product)
{
    for (int rows = 1; rows <= product->panel; rows++) {
        check_sums(product, rows, 64, 0);
        check_sums(product, rows, 320, 0);
        check_sums(product, rows, 65536, 1);
    }
}

static void same_sums_everywhere(void **state)
{
    gumbel_isa isas[4];
    int count = list_isas(isas);
    (void)state;
    for (int i = 1; i < count; i++)
        check_product(cpu_find_screen_kernel(isas[i]));
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512vnni")) /* which draws do not use on processors with AMX */
        check_product(&cpu_screen_vnni);
#endif
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
        cmocka_unit_test(every_logit_is_within),
        cmocka_unit_test(mutants_are_caught),
        cmocka_unit_test(rounding_term_is_needed),
        cmocka_unit_test(subnormal_terms_are_covered),
        cmocka_unit_test(half_steps_need_dither),
        cmocka_unit_test(errors_are_uniform_and_independent),
        cmocka_unit_test(width_is_used_as_predicted),
        cmocka_unit_test(seeds_repeat_and_entropy_does_not),
        cmocka_unit_test(bounds_round_outward),
        cmocka_unit_test(caps_are_lifted_enough),
        cmocka_unit_test(same_bytes_everywhere),
        cmocka_unit_test(same_sums_everywhere),
    };
    return cmocka_run_group_tests_name("screen_bounds", tests, open_any, close_any);
}
