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

const char *const bound_names[BOUND_KINDS] = {"fine", "coarse", "refined"};

static double gamma_of(int64_t columns)
{
    return (double)((columns + 31) / 32 * 2 + 4) * 0x1p-24 * 1.001;
}

static int has_nibbles(const screened *s)
{
    return s->header.layout == GUMBEL_SCREEN_LAYOUT_NIBBLES;
}

int byte_of(const screened *s, int64_t row, int64_t i)
{
    const int64_t columns = s->offsets.columns;
    const uint8_t *tile = s->screen + s->offsets.copy + row / 16 * 16 * columns;
    if (!has_nibbles(s))
        return tile[i / 64 * 1024 + i % 64 / 4 * 64 + row % 16 * 4 + i % 4] - 128;
    /* [stream][group] of four rows, in a block of 64. */
    const int64_t group = row % 4 * 4 + row % 64 / 16, of_group = row % 16 / 4;
    const uint8_t *high = s->screen + s->offsets.copy + row / 64 * 32 * columns;
    const uint8_t *low = high + s->offsets.blocks * 32 * columns;
    high += group * 2 * columns + i / 32 * 64 + of_group * 16 + i % 16;
    low += group * 2 * columns + of_group * columns / 2 + i / 32 * 16 + i % 16;
    int shift = i % 32 < 16 ? 0 : 4;
    return (*high >> shift & 15) * 16 + (*low >> shift & 15) - 128;
}

float step_of(const screened *s, int64_t row)
{
    return ((const float *)(const void *)(s->screen + s->offsets.steps))[row];
}

gumbel_screen_block block_of(const screened *s, int64_t row)
{
    return ((const gumbel_screen_block *)(const void *)(s->screen + s->offsets.bounds))[row / 64];
}

float width_of(const screened *s, bound_kind kind, const gumbel_screen_hidden_error *own,
               const gumbel_screen_block *block)
{
    const int64_t columns = s->head->weight.cols;
    return kind == BOUND_COARSE
               ? gumbel_screen_coarse_width(own, block, gumbel_screen_bound_low_nibbles(columns))
               : gumbel_screen_error_width(own, block);
}

int32_t *dither_of(const screened *s) { return (int32_t *)(void *)(s->screen + s->offsets.dither); }

float error_of(const screened *s, bound_kind kind, int64_t row, int64_t i)
{
    const gumbel_tensor *w = &s->head->weight;
    double x = (double)dtype_load(w->data, w->dtype, row * w->cols + i) / (double)step_of(s, row);
    double u = (double)dither_of(s)[i] * (double)GUMBEL_SCREEN_DITHER_UNIT;
    int byte = byte_of(s, row, i);
    if (has_nibbles(s)) {
        uint32_t word = (uint32_t)dither_of(s)[i];
        x /= (double)gumbel_screen_scales[word % 16];
        u = (double)(word >> 12) * 0x1p-16 - 8.5;
    }
    if (kind == BOUND_COARSE)
        return (float)((x + u - ((byte + 128) / 16 * 16 - 128 + 7.5)) / 16);
    return (float)(x + u - byte);
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

/* The operands of a row's bounds: integer sums, the terms of the hidden state, and the width. */
typedef struct operands {
    int32_t high, low;
    float plane, width;
} operands;

hidden_planes split_hidden(const screened *s, const float *h)
{
    int64_t columns = s->head->weight.cols, padded = s->offsets.columns;
    float *scaled = make_zeroed((size_t)columns, sizeof *scaled);
    hidden_planes to = {.high = make_zeroed((size_t)padded * 3, 1)};
    gumbel_screen_planes planes = {s->plane, to.high, to.high + padded, 64};
    to.low = to.high + padded;
    to.single = to.low + padded;
    memcpy(scaled, h, (size_t)columns * sizeof *scaled);
    if (has_nibbles(s))
        gumbel_screen_scale_hidden((const gumbel_screen_column *)dither_of(s), columns, scaled);
    assert_true(gumbel_screen_split_hidden(scaled, columns, &s->header, dither_of(s),
                                           gamma_of(columns), &planes, &to.errors[BOUND_FINE]));
    if (has_nibbles(s))
        gumbel_screen_round_hidden(scaled, columns, &s->header, dither_of(s),
                                   &to.errors[BOUND_FINE], to.single, 64, &to.errors[BOUND_COARSE],
                                   &to.errors[BOUND_REFINED]);
    free(scaled);
    return to;
}

static operands multiply_row(const screened *s, const hidden_planes *h, bound_kind kind,
                             int64_t row)
{
    operands o = {.plane = kind == BOUND_FINE ? (float)s->plane : 0.0f};
    for (int64_t i = 0; i < s->head->weight.cols; i++) {
        const int byte = byte_of(s, row, i);
        const int q = kind == BOUND_COARSE ? (byte + 128) / 16 - 8 : byte;
        o.high += q * (kind == BOUND_FINE ? h->high : h->single)[i];
        o.low += q * (kind == BOUND_FINE ? h->low : h->single)[i];
    }
    return o;
}

void check_logits(const screened *s, const float *h, bound_kind kind, mutant m, seen *into)
{
    int64_t rows = s->head->weight.rows;
    float *logits = make_zeroed((size_t)rows, sizeof *logits);
    hidden_planes to = split_hidden(s, h);
    multiply(s, h, logits);
    for (int64_t row = 0; row < rows; row++) {
        gumbel_screen_block block = block_of(s, row);
        gumbel_screen_hidden_error own = to.errors[kind];
        operands o = multiply_row(s, &to, kind, row);
        float step = step_of(s, row);
        mutate(m, &own, &block);
        o.width = width_of(s, kind, &own, &block);
        float upper = gumbel_screen_bound_logit(step, own.unit, o.plane, o.width - own.shift,
                                                GUMBEL_SCREEN_TINY, o.high, o.low);
        float lower = gumbel_screen_bound_logit(step, own.unit, o.plane, -o.width - own.shift,
                                                -GUMBEL_SCREEN_TINY, o.high, o.low);
        double middle = ((double)upper + (double)lower) / 2, half = (double)upper - middle;
        double used = half > 0 ? fabs((double)logits[row] - middle) / half : 0;
        into->checked++;
        into->outside += !(logits[row] >= lower && logits[row] <= upper);
        into->max_used = used > into->max_used ? used : into->max_used;
        into->square += used * used;
    }
    free(to.high);
    free(logits);
}

screened make_screened(gumbel_device *device, const generated_head *head, int plane,
                       gumbel_screen_certificate certificate, gumbel_screen_format format)
{
    screened s = {.head = head,
                  .screen = make_screen_as(device, &head->weight, certificate, format).data,
                  .plane = plane};
    memcpy(&s.header, s.screen, sizeof s.header);
    assert_true(gumbel_screen_find_offsets(head->weight.rows, head->weight.cols, &s.offsets));
    return s;
}

void requantize(screened *s)
{
    const gumbel_tensor *w = &s->head->weight;
    const int64_t columns = s->offsets.columns;
    int64_t stride = w->cols * (int64_t)dtype_size(w->dtype);
    for (int64_t block = 0; block < s->offsets.blocks; block++) {
        cpu_quantized_rows rows = {.dtype = w->dtype,
                                   .stride_bytes = stride,
                                   .hidden_size = w->cols,
                                   .dither = dither_of(s),
                                   .count = 16,
                                   .stream_bytes = 8 * columns};
        assert_int_equal(w->rows % 64, 0);
        for (int64_t first = block * 64; first < block * 64 + 64; first += 16) {
            rows.weight = (const char *)w->data + first * stride;
            rows.steps = (float *)(void *)(s->screen + s->offsets.steps) + first;
            rows.copy = s->screen + s->offsets.copy + first * columns;
            if (has_nibbles(s)) {
                rows.copy = s->screen + s->offsets.copy + block * 32 * columns +
                            first % 64 / 16 * 2 * columns;
                rows.low_nibbles = rows.copy + s->offsets.blocks * 32 * columns;
            }
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
