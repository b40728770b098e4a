/* SPDX-License-Identifier: Apache-2.0
 *
 * Heads and hidden states that resemble those of trained models, and rows that stress error bounds.
 */
#ifndef TESTS_GENERATED_HEADS_H
#define TESTS_GENERATED_HEADS_H

#include "inputs.h"
#include "maths/screen_bound.h"

#include <gumbel/screen.h>
#include <math.h>
#include <stdlib.h>

typedef enum head_kind {
    HEAD_GAUSSIAN,
    HEAD_STRUCTURED, /* rows and columns of different norms, a common direction; h is near a row */
    HEAD_OUTLIERS,   /* as HEAD_STRUCTURED; four dimensions carry 80% of |h|^2 */
    HEAD_HOSTILE,    /* all kinds of rows of generate_odd_weight(), in turn */
    HEAD_KINDS,
} head_kind;

static const char *const head_kind_names[HEAD_KINDS] = {"Gaussian", "structured", "outliers",
                                                        "hostile"};

/* Weights [V, D] and hidden states [B, D], on the heap. */
typedef struct generated_head {
    gumbel_tensor weight, hidden;
} generated_head;

static inline float generate_odd_weight(int64_t row, int64_t i, int64_t columns, float x)
{
    switch (row % 12) {
    case 1:
        return 0.0f;
    case 2:
        return i == row % columns ? 3.0f : 0.0f;
    case 3: /* an outlier that is far larger than all other weights */
        return i == row % columns ? 8.0f : x * 0.1f;
    case 4: /* near and below the smallest normal float32 */
        return x * 1e-36f;
    case 5:
        return x * 1e6f;
    case 6: /* no quantization error */
        return i & 1 ? 0.5f : -0.5f;
    case 7: /* the largest quantization error, half a step, for every weight */
        return i == 0 ? 1.0f : (rintf(x * 32) + 0.499f) / 127.0f;
    case 8: /* heavy tails */
        return x * x * x * 50.0f;
    case 9: /* nearly constant */
        return 1.0f + x * 0.01f;
    case 10: /* integers times a power of two: no rounding at all */
        return i == 0 ? 127.0f * 0x1p-9f : rintf(x * 900.0f) * 0x1p-9f;
    default:
        return x;
    }
}

static inline float generate_weight(head_kind kind, uint64_t *state, int64_t row, int64_t i,
                                    int64_t columns, float size)
{
    uint64_t column = (uint64_t)i * 77 + 5;
    float x = random_normal(state) * size, common = random_normal(&column);
    if (kind == HEAD_HOSTILE)
        return generate_odd_weight(row, i, columns, x * 0.5f);
    if (kind == HEAD_GAUSSIAN)
        return x;
    x = (0.8f * x * expf(0.35f * random_normal(state)) + 0.5f * size * common) *
        expf(0.3f * common);
    return kind == HEAD_OUTLIERS && i % 37 == 7 && i < 4 * 37 ? 0.05f * x : x;
}

static inline generated_head generate_head(head_kind kind, gumbel_dtype dtype, int64_t rows,
                                           int64_t columns, int64_t batch, uint64_t seed)
{
    uint64_t state = seed;
    size_t element = dtype_size(dtype);
    void *weight = make_zeroed((size_t)(rows * columns), element);
    void *hidden = make_zeroed((size_t)(batch * columns), element);
    for (int64_t row = 0; row < rows; row++) {
        float size = (kind == HEAD_GAUSSIAN ? 1.0f : expf(0.25f * random_normal(&state))) /
                     sqrtf((float)columns);
        for (int64_t i = 0; i < columns; i++)
            dtype_store(weight, dtype, row * columns + i,
                        generate_weight(kind, &state, row, i, columns, size));
    }
    for (int64_t b = 0; b < batch; b++) {
        int64_t leans = (int64_t)random_below(&state, (uint32_t)rows);
        for (int64_t i = 0; i < columns; i++) {
            float x = random_normal(&state);
            if (kind == HEAD_STRUCTURED || kind == HEAD_OUTLIERS)
                x += 4.0f * dtype_load(weight, dtype, leans * columns + i);
            if (kind == HEAD_OUTLIERS && i % 37 == 7 && i < 4 * 37)
                x *= sqrtf((float)columns);
            dtype_store(hidden, dtype, b * columns + i, 2.5f * x);
        }
    }
    return (generated_head){{weight, dtype, rows, columns, 0, {0}},
                            {hidden, dtype, batch, columns, 0, {0}}};
}

static inline void free_generated_head(generated_head *head)
{
    free((void *)(uintptr_t)head->weight.data);
    free((void *)(uintptr_t)head->hidden.data);
}

/* The format of make_screen(). */
static gumbel_screen_format format_under_test;

/* The screen of weights, on the heap, with dither from a fixed seed. */
static inline gumbel_screen make_screen_as(gumbel_device *device, const gumbel_tensor *weight,
                                           gumbel_screen_certificate certificate,
                                           gumbel_screen_format format)
{
    static const uint64_t seed = 7;
    const gumbel_screen_options options = {sizeof options, certificate, format, &seed};
    gumbel_screen screen = {NULL, 0, format};
    gumbel_error error;
    if (gumbel_screen_size(device, weight, &screen.bytes, &error))
        die("%s: %s", error.field, error.message);
    screen.data = aligned_alloc(GUMBEL_WORKSPACE_ALIGNMENT, screen.bytes);
    if (!screen.data || gumbel_screen_prepare(device, NULL, weight, &options, &screen, &error))
        die("%s: %s", error.field, error.message);
    return screen;
}

/* A screen of the format under test. With nibbles, all draws that can read high nibbles first do,
 * also where this is slower. */
static inline gumbel_screen make_screen(gumbel_device *device, const gumbel_tensor *weight)
{
    gumbel_screen screen =
        make_screen_as(device, weight, GUMBEL_SCREEN_PROBABLE, format_under_test);
    gumbel_screen_header *header = (gumbel_screen_header *)screen.data;
    if (format_under_test == GUMBEL_SCREEN_NIBBLES) {
        header->coarse_draws = UINT32_MAX;
        header->check = gumbel_screen_checksum(header);
    }
    return screen;
}

#endif
