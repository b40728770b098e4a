/* SPDX-License-Identifier: Apache-2.0
 *
 * Heads with screens that the emulated kernels make, and reads of their quantized weights and of
 * those of a CPU's screen, in the documented layouts.
 */
#ifndef TESTS_EMULATOR_SCREENED_HEADS_H
#define TESTS_EMULATOR_SCREENED_HEADS_H

extern "C" {
#include "maths/screen_bound.h"
}

#include "launch_screen.h"

extern "C" {
#include "outcome.h"
}

#include "generated_heads.h"

enum hidden_kind {
    HIDDEN_GAUSSIAN,
    HIDDEN_ONES,
    HIDDEN_ALONG_DITHER, /* the largest shift; probable bounds do not hold */
    HIDDEN_TINY,
    HIDDEN_FLAT_KINDS, /* kinds before this one have no outliers */
    HIDDEN_ZERO = HIDDEN_FLAT_KINDS,
    HIDDEN_OUTLIER,
    HIDDEN_TWO_OUTLIERS,
    HIDDEN_SINGLE,
    HIDDEN_HEAVY,
    HIDDEN_KINDS,
};

static inline float generate_hidden(int kind, int64_t i, int32_t dither, uint64_t *state)
{
    const float x = random_normal(state);
    switch (kind) {
    case HIDDEN_ONES:
        return 1.0f;
    case HIDDEN_ALONG_DITHER:
        return dither < 0 ? -1.0f : 1.0f;
    case HIDDEN_TINY:
        return x * 0x1p-12f;
    case HIDDEN_ZERO:
        return 0.0f;
    case HIDDEN_OUTLIER:
        return i == 5 ? 3000.0f : x;
    case HIDDEN_TWO_OUTLIERS:
        return i == 3 ? 3000.0f : i == 6 ? 200.0f : x;
    case HIDDEN_SINGLE:
        return i == 5 ? 1.0f : 0.0f;
    case HIDDEN_HEAVY:
        return expf(2 * x);
    default:
        return x;
    }
}

/* The layout of a format's screens on CUDA. */
static inline gumbel_screen_layout find_tiled_layout(gumbel_screen_format format)
{
    return format == GUMBEL_SCREEN_NIBBLES ? GUMBEL_SCREEN_LAYOUT_NIBBLE_TILES
                                           : GUMBEL_SCREEN_LAYOUT_TILES;
}

/* A head, its screen by the emulated kernels, and the hidden states' kinds as rows. */
struct screened_head {
    generated_head head;
    gumbel_screen_format format;
    gumbel_screen_certificate certificate;
    uint64_t seed;
    char *screen;
    gumbel_screen_offsets offsets;

    const gumbel_screen_header &header() const { return *(gumbel_screen_header *)screen; }
    const float *steps() const { return (float *)(screen + offsets.steps); }
    /* Dither of the columns, or their words. */
    const int32_t *columns() const { return (int32_t *)(screen + offsets.dither); }
    int32_t dither(int64_t column) const
    {
        return format == GUMBEL_SCREEN_NIBBLES
                   ? gumbel_screen_column_dither((uint32_t)columns()[column])
                   : columns()[column];
    }
    const gumbel_screen_block &block(int64_t row) const
    {
        return ((gumbel_screen_block *)(screen + offsets.bounds))[row / 64];
    }
    float low_nibbles() const { return gumbel_screen_bound_low_nibbles(head.weight.cols); }

    /* The integer q of a weight, in the layouts of screen_params.h. */
    int byte(int64_t row, int64_t column) const
    {
        const int64_t in = row % 128, at = in / 16 * 16 + in % 2 * 8 + in % 16 / 2;
        const int64_t tile = row / 128 * (offsets.columns / 128) + column / 128;
        const int8_t *copy = (int8_t *)screen + offsets.copy;
        if (format == GUMBEL_SCREEN_NIBBLES) {
            const int8_t *low_copy = copy + offsets.blocks * 64 * offsets.columns / 2;
            const int64_t part = column % 16 / 4, word = column % 128 / 64 * 2 + column % 32 / 16;
            const int64_t i = (tile * 128 + at) * 64 + part * 16 + word * 4 + column % 4;
            const int shift = column % 64 < 32 ? 0 : 4;
            const int high = (copy[i] >> shift & 15) ^ 8, low = low_copy[i] >> shift & 15;
            return 16 * (high - 8) + low;
        }
        const int64_t unit = column % 128 / 16 ^ at % 8;
        return copy[(tile * 128 + at) * 128 + unit * 16 + column % 16];
    }
    /* 16 (n - 8) of the high nibble n. */
    int high_nibble(int64_t row, int64_t column) const { return byte(row, column) & ~15; }
};

/* Makes the screen of s.head. */
static inline void make_own_screen(screened_head &s, uint64_t *random, const char *what)
{
    s.seed = random_bits(random);
    s.screen = (char *)emulate_prepare_screen(s.head.weight, s.certificate, s.seed,
                                              GUMBEL_SCREEN_LIST_MAX, random, what, s.format);
    gumbel_screen_find_offsets_as(find_tiled_layout(s.format), s.head.weight.rows,
                                  s.head.weight.cols, &s.offsets);
}

/* A head by number, with rows and columns that the draws support. */
static inline screened_head make_screened(int index, gumbel_screen_format format, uint64_t *random,
                                          const char *what)
{
    static const int64_t columns[] = {8, 64, 136, 200, 1024, 2048};
    const head_kind kind = (head_kind)(index % HEAD_KINDS);
    const bool is_wide = index % 12 == 5;
    const gumbel_dtype dtype =
        kind != HEAD_HOSTILE && one_in(random, 3) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    screened_head s = {};
    s.format = format;
    s.head = generate_head(kind, dtype, is_wide ? 16 : 16 * (4 + random_below(random, 12)),
                           is_wide ? 65528 : columns[index % 6], HIDDEN_KINDS, 11);
    s.head.weight.stride = s.head.weight.cols;
    /* Norms of sqrt(10) 2^-133, which float32 rounds down by more than 2^-20 of them. */
    const bool is_tiny = index % 12 == 6 && dtype == GUMBEL_BFLOAT16;
    for (int64_t i = 0; i < s.head.weight.rows * s.head.weight.cols && is_tiny; i++)
        dtype_store((void *)s.head.weight.data, dtype, i,
                    i % s.head.weight.cols > 1    ? 0.0f
                    : i % s.head.weight.cols == 1 ? 0x1p-133f
                                                  : 0x3p-133f);
    s.certificate = index / 6 % 2 ? GUMBEL_SCREEN_CERTAIN : GUMBEL_SCREEN_PROBABLE;
    make_own_screen(s, random, what);
    for (int64_t b = 0; b < HIDDEN_KINDS; b++)
        for (int64_t i = 0; i < s.head.hidden.cols; i++)
            dtype_store((void *)s.head.hidden.data, dtype, b * s.head.hidden.cols + i,
                        generate_hidden((int)b, i, s.dither(i), random));
    return s;
}

/* A head by number of any shape and dtype, with rows that are not finite. */
static inline screened_head make_odd_screened(int index, gumbel_screen_format format,
                                              uint64_t *random, const char *what)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    screened_head s = {};
    const int64_t rows = 1 + random_below(random, index % 5 ? 300 : 1500);
    s.format = format;
    s.head = generate_head(index % 4 ? HEAD_STRUCTURED : HEAD_HOSTILE,
                           index % 4 ? dtypes[index % 3] : GUMBEL_BFLOAT16, rows,
                           1 + random_below(random, 300), 1, (uint64_t)index);
    gumbel_tensor &weight = s.head.weight;
    for (int64_t row = 3; row < rows; row += 60)
        dtype_store((void *)weight.data, weight.dtype,
                    row * weight.cols + random_below(random, (uint32_t)weight.cols),
                    row % 40 == 3 ? NAN : -INFINITY);
    weight.stride = weight.cols;
    if (index % 3 == 1 && rows > 1) { /* every second row */
        weight.rows = rows / 2;
        weight.stride = 2 * weight.cols;
    }
    s.certificate = choose_certificate(random);
    make_own_screen(s, random, what);
    return s;
}

static inline void free_screened(screened_head *s)
{
    free(s->screen);
    free_generated_head(&s->head);
}

/* The integer q of a weight in the screen of a CPU. */
static inline int read_byte_of_cpu(const char *screen, const gumbel_screen_offsets &offsets,
                                   gumbel_screen_format format, int64_t row, int64_t column)
{
    const uint8_t *copy = (const uint8_t *)screen + offsets.copy;
    const int64_t columns = offsets.columns;
    if (format == GUMBEL_SCREEN_BYTES)
        return copy[row / 16 * 16 * columns + row % 16 * 4 + column / 64 * 1024 +
                    column % 64 / 4 * 64 + column % 4] -
               128;
    const int64_t group =
        row / 64 * 32 * columns + row % 4 * 8 * columns + row % 64 / 16 * 2 * columns;
    const int64_t in_group = row % 16 / 4;
    const uint8_t *low_copy = copy + offsets.blocks * 32 * columns;
    const int shift = column % 32 < 16 ? 0 : 4;
    const int high = copy[group + column / 32 * 64 + in_group * 16 + column % 16] >> shift & 15;
    const int low =
        low_copy[group + in_group * (columns / 2) + column / 32 * 16 + column % 16] >> shift & 15;
    return 16 * high + low - 128;
}

#endif
