/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/cpu_kernels.h"
#include "outcome.h"
#include "screen_intervals.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const char *const mutant_names[MUTANTS] = {"the bound",   "entries 10% low", "E 3% low",
                                           "no residual", "no rounding",     "no shift"};

static double gamma_of(int64_t columns)
{
    return (double)((columns + 31) / 32 * 2 + 4) * 0x1p-24 * 1.001;
}

int byte_of(const screened *s, int64_t row, int64_t i)
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

float error_of(const screened *s, int64_t row, int64_t i)
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

void check_logits(const screened *s, const float *h, mutant m, seen *into)
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

screened make_screened(gumbel_device *device, const generated_head *head, int plane,
                       gumbel_screen_certificate certificate)
{
    screened s = {.head = head,
                  .screen = make_screen_as(device, &head->weight, certificate).data,
                  .plane = plane};
    memcpy(&s.header, s.screen, sizeof s.header);
    assert_true(gumbel_screen_find_offsets(head->weight.rows, head->weight.cols, &s.offsets));
    return s;
}

void remove_dither(screened *s)
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

generated_head generate_half_steps(int64_t columns, float w)
{
    const int64_t rows = 192;
    float *weight = make_zeroed((size_t)(rows * columns), sizeof *weight);
    for (int64_t i = 0; i < rows * columns; i++)
        weight[i] = (i / columns % 2 ? -w : w) * (i % columns ? 1.0f : 126.5f / 62.501f);
    return (generated_head){{weight, GUMBEL_FLOAT32, rows, columns, 0, {0}}, {0}};
}

void fill_ones(float *h, int64_t columns)
{
    for (int64_t i = 0; i < columns; i++)
        h[i] = 1.0f;
}
