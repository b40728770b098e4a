/* SPDX-License-Identifier: Apache-2.0
 *
 * The screen of a head: its weights quantized to int8, and bounds of the quantization error
 * (docs/maths.md, section 14). All backends read this format and compute the bounds with this code.
 *
 * A buffer holds a header, two bounds for each block of 64 rows, a quantization step for each row,
 * the dither of each column, and the quantized copy. Each of these arrays begins at a multiple of
 * 64 bytes, or of 1024 in layouts of tiles. In a row with step s, a weight of column j is
 * w = s (q - u_j + e): q is the stored integer, in -127..127, u_j is the dither, and e is the
 * quantization error in steps.
 *
 * Layouts of nibbles divide the byte q + 128, in 0..255, into 16 n + m. All high nibbles n precede
 * all low nibbles m. The dither covers 16 steps, so that the high nibbles alone are a coarse
 * copy with the same law at 16 times the step: w = s (16 (n - 8) + 7.5 - u_j + e'), |e'| <= 8. The
 * weights of a column are divided by its scale first, and hidden states are multiplied by it.
 */
#ifndef GUMBEL_MATHS_SCREEN_BOUND_H
#define GUMBEL_MATHS_SCREEN_BOUND_H

#include "maths/noise.h"

#include <stddef.h>

#define GUMBEL_SCREEN_MAGIC   UINT64_C(0x4e45455243534247) /* "GBSCREEN" */
#define GUMBEL_SCREEN_VERSION 2
/* With more columns an integer dot product could overflow: 255 * 128 * D < 2^31. */
#define GUMBEL_SCREEN_COLUMNS_MAX 65535
/* Largest capacity of a candidate list. */
#define GUMBEL_SCREEN_LIST_MAX 256
/* Largest error of a weight in steps: 1/2, plus the rounding of the division by the step. */
#define GUMBEL_SCREEN_ENTRY 0x1.001p-1f
/* Dither is a multiple of this unit, from -1/2 up to, but not including, 1/2; in layout NIBBLES a
 * multiple of 256 units from -17/2 to 15/2. */
#define GUMBEL_SCREEN_DITHER_UNIT 0x1p-24f
/* c: with random dither the sum of e_j h_j over the columns exceeds c |h| with a chance below
 * 2 exp(-6 c^2) < 2^-82, for each row of weights and each h that does not depend on the dither. */
#define GUMBEL_SCREEN_DEVIATION 3.0966
/* c of layout NIBBLES: each of the four statements behind a row's bounds fails with a chance below
 * 2^-84. */
#define GUMBEL_SCREEN_NESTED_DEVIATION 3.134
/* Smallest step. */
#define GUMBEL_SCREEN_STEP_MIN 0x1p-100f
/* A row whose hidden state or logits may exceed these limits is a fallback row. */
#define GUMBEL_SCREEN_HIDDEN_MAX 0x1p100
#define GUMBEL_SCREEN_LOGIT_MAX  0x1p120
/* Bounds the sum of all subnormal rounding errors of a logit, in any order of summation. */
#define GUMBEL_SCREEN_TINY 0x1p-126f
/* Bounds the errors, in steps, of terms of gumbel_screen_error_width() that are subnormal. */
#define GUMBEL_SCREEN_WIDTH_MIN 0x1p-132f
/* Largest number of outlier dimensions of a hidden state: they enter the error bound by the sum of
 * their absolute values, all others by their norm. */
#define GUMBEL_SCREEN_OUTLIERS_MAX 64

typedef enum gumbel_screen_layout {
    GUMBEL_SCREEN_LAYOUT_NONE = 0, /* of a device without screens */
    /* [V / 16][D / 64][16 quads of columns][16 rows][4 columns] of q + 128 */
    GUMBEL_SCREEN_LAYOUT_CPU = 1,
    /* CUDA: tiles of 128 rows and columns of q (cuda/fused/screen/screen_params.h). 2 was without
     * dither. */
    GUMBEL_SCREEN_LAYOUT_TILES = 3,
    /* CPU. High nibbles: [V / 64][4 streams][4 groups][D / 32][4 rows][16 bytes], of row 16 group +
     * 4 row + stream of a block; byte i holds column i in its low half and column i + 16 in its
     * high half. Low nibbles: rows in the same order, [D / 32][16 bytes] each. */
    GUMBEL_SCREEN_LAYOUT_NIBBLES = 4,
    /* CUDA: high nibbles n - 8, then low nibbles, each in tiles of 128 rows and columns
     * (cuda/fused/screen/screen_params.h). */
    GUMBEL_SCREEN_LAYOUT_NIBBLE_TILES = 5,
} gumbel_screen_layout;

/* Whether a layout stores nibbles. */
GUMBEL_INLINE int gumbel_screen_is_nested(uint32_t layout)
{
    return layout == GUMBEL_SCREEN_LAYOUT_NIBBLES || layout == GUMBEL_SCREEN_LAYOUT_NIBBLE_TILES;
}

typedef struct gumbel_screen_header {
    uint64_t magic;
    uint32_t version;
    uint32_t layout;      /* a gumbel_screen_layout */
    int64_t rows;         /* V */
    int64_t columns;      /* D */
    uint32_t dtype;       /* of the weights */
    int32_t list_max;     /* capacity of a candidate list, 1..GUMBEL_SCREEN_LIST_MAX */
    uint32_t certificate; /* a gumbel_screen_certificate */
    /* Layout NIBBLES: a call of at most this many draws reads the high nibbles first. Else 0. */
    uint32_t coarse_draws;
    float error;    /* largest gumbel_screen_block.error */
    float weight;   /* largest |w| of all rows */
    uint64_t check; /* gumbel_screen_checksum() */
} gumbel_screen_header;

/* Bounds that hold for all 64 rows of a block. */
typedef struct gumbel_screen_block {
    float error; /* E: upper bound on the norm of a row's e */
    float size;  /* N: upper bound on the norm of a row's q, in layout NIBBLES also of 16 (n - 8);
                  * N + E bounds that of w / s */
} gumbel_screen_block;

/* The arrays of a buffer. */
typedef struct gumbel_screen_offsets {
    int64_t blocks;       /* of 64 rows */
    int64_t columns;      /* of the copy: D rounded up to 64, or to 128 in tiles */
    size_t bounds, steps; /* byte offsets of the arrays */
    size_t dither;        /* int32 [columns], in GUMBEL_SCREEN_DITHER_UNIT; 0 in padding. Layout
                           * NIBBLES: gumbel_screen_column words */
    size_t copy;
    size_t bytes; /* of the whole buffer */
} gumbel_screen_offsets;

/* Terms of a logit's error bound that depend on the hidden state h = u k + r, in steps of the row.
 * Letters are those of docs/maths.md, section 14. All terms are rounded up. */
typedef struct gumbel_screen_hidden_error {
    float unit;        /* u: the quantization step of h */
    float outlier_sum; /* A: sum of |h_j| over the outlier dimensions O */
    float inlier_norm; /* R: norm of h over all other dimensions */
    float residual;    /* G: norm of r, plus the rounding error of converting the sums */
    float rounding;    /* gamma times the norm of h, for the rounding error of the full pass */
    float dithered;    /* the part of the error that is the same for all rows */
    float shift;       /* the sum of u_j h_j, which is subtracted from the product */
} gumbel_screen_hidden_error;

/* Computes the offsets for weights [rows, columns] in the CPU's layout, or in `layout`. Returns 0
 * on overflow. */
int gumbel_screen_find_offsets(int64_t rows, int64_t columns, gumbel_screen_offsets *offsets);
int gumbel_screen_find_offsets_as(gumbel_screen_layout layout, int64_t rows, int64_t columns,
                                  gumbel_screen_offsets *offsets);

uint64_t gumbel_screen_checksum(const gumbel_screen_header *header);

/* Dither of columns first .. first + count - 1 from a seed; `first` is a multiple of 4. Below: from
 * a word of uniform random bits. */
void gumbel_screen_seed_dither(uint64_t seed, int64_t first, int64_t count, int32_t *dither);
GUMBEL_INLINE int32_t gumbel_screen_dither_of(uint32_t word)
{
    return (int32_t)(word >> 8) - (1 << 23);
}

/* A word of a column in layout NIBBLES: its dither in the upper 20 bits, 8 bits by which hidden
 * states are rounded, and the index of its scale. */
typedef uint32_t gumbel_screen_column;
/* The word of a column without dither, of scale 1. */
#define GUMBEL_SCREEN_COLUMN_NONE UINT32_C(0x88000000)
#define GUMBEL_SCREEN_SCALES      16
/* 2^(1/4), 2^(1/2) and 2^(3/4). */
#define GUMBEL_SCREEN_ROOT_1 0x1.306fep+0f
#define GUMBEL_SCREEN_ROOT_2 0x1.6a09e6p+0f
#define GUMBEL_SCREEN_ROOT_3 0x1.ae89fap+0f
/* 2^(index / 4), and one divided by it. */
extern const float gumbel_screen_scales[GUMBEL_SCREEN_SCALES];
extern const float gumbel_screen_inverse_scales[GUMBEL_SCREEN_SCALES];

/* These numbers without a table. */
GUMBEL_INLINE float gumbel_screen_compute_scale(int index)
{
    float even = index & 2 ? GUMBEL_SCREEN_ROOT_2 : 1.0f;
    float odd = index & 2 ? GUMBEL_SCREEN_ROOT_3 : GUMBEL_SCREEN_ROOT_1;
    return (index & 1 ? odd : even) * gumbel_float_of((uint32_t)(127 + index / 4) << 23);
}
GUMBEL_INLINE float gumbel_screen_compute_inverse_scale(int index)
{
    float even = index & 2 ? 1.0f / GUMBEL_SCREEN_ROOT_2 : 1.0f;
    float odd = index & 2 ? 1.0f / GUMBEL_SCREEN_ROOT_3 : 1.0f / GUMBEL_SCREEN_ROOT_1;
    return (index & 1 ? odd : even) * gumbel_float_of((uint32_t)(127 - index / 4) << 23);
}

/* Random words of columns, with scale 1, from a seed. */
void gumbel_screen_seed_columns(uint64_t seed, int64_t first, int64_t count,
                                gumbel_screen_column *columns);
GUMBEL_INLINE int32_t gumbel_screen_column_dither(gumbel_screen_column column)
{
    return (int32_t)(column >> 12 << 8) - 17 * (1 << 23);
}
GUMBEL_INLINE int gumbel_screen_column_scale(gumbel_screen_column column)
{
    return (int)(column % GUMBEL_SCREEN_SCALES);
}

/* Rows of weights that are sampled to choose the scales of columns: every step-th one. */
#define GUMBEL_SCREEN_ROWS_SAMPLED      512
#define GUMBEL_SCREEN_SAMPLE_STEP(rows) ((rows) / GUMBEL_SCREEN_ROWS_SAMPLED + 1)

/* Chooses the scale of a column, given the square of its norm and the largest one of a column: the
 * power of 2^(1/4) near the norm to the power 3/4. Errors of a column are proportional to its
 * scale, and the steps of rows to the largest scaled weight. In simulations of structured heads the
 * power 3/4 gave half the width of equal scales, and less than the powers 1/2 and 1. */
GUMBEL_INLINE uint32_t gumbel_screen_choose_scale(double square, double max_square)
{
    uint32_t scale = GUMBEL_SCREEN_SCALES - 1;
    double bound = max_square * 0x1.6a09e667f3bcdp-1; /* 2^(-1/2) */
    for (; scale > 0 && square < bound; scale--)
        bound *= 0x1.428a2f98d728bp-1; /* 2^(-2/3) */
    return scale;
}

/* Multiplies a hidden state by the scales of its columns. */
void gumbel_screen_scale_hidden(const gumbel_screen_column *columns, int64_t count, float *h);

/* The quantization step of a row whose largest |w| is `max_weight`, which is finite; rounded up so
 * that |x| <= 126.5 and |q| <= 127. */
GUMBEL_INLINE float gumbel_screen_choose_step(float max_weight)
{
    float step = max_weight * (1.0f / 126.5f) * (1.0f + 0x1p-21f);
    return step < GUMBEL_SCREEN_STEP_MIN ? GUMBEL_SCREEN_STEP_MIN : step;
}

/* The step in layout NIBBLES: |x| <= 120 and -128 <= q <= 127 for all dither. */
GUMBEL_INLINE float gumbel_screen_choose_nested_step(float max_weight)
{
    float step = max_weight * (1.0f / 120.0f) * (1.0f + 0x1p-21f);
    return step < GUMBEL_SCREEN_STEP_MIN ? GUMBEL_SCREEN_STEP_MIN : step;
}

/* A weight w / s, in x, rounded to an integer behind its dither: the integer q, and in *error the
 * difference of q - u and x rounded to GUMBEL_SCREEN_DITHER_UNIT, which is exact. |x| <= 126.5, or
 * 120 with the dither of layout NIBBLES. */
GUMBEL_INLINE int32_t gumbel_screen_round(float x, int32_t dither, float *error)
{
    int32_t sum = (int32_t)rintf(x * 0x1p24f) + (dither + (1 << 23));
    int32_t below = (int32_t)((uint32_t)sum & 0xffffffu);
    *error = (float)((1 << 23) - below) * GUMBEL_SCREEN_DITHER_UNIT;
    return (sum - below) / (1 << 24);
}

/* The int8 planes of a hidden state, k = size * high + low, in groups of 64 columns. */
typedef struct gumbel_screen_planes {
    int size;           /* 256 or 128 */
    int8_t *high, *low; /* padded with zeros to whole groups */
    int64_t stride;     /* bytes from one group to the next */
} gumbel_screen_planes;

/* Splits h, [columns], into planes whose integer products are exact. `header` and `dither`,
 * [columns], are the screen's; gamma times |w| |h| bounds the rounding error of the backend's full
 * pass. Returns 0 if h is not finite or the logits may be too large. */
int gumbel_screen_split_hidden(const float *h, int64_t columns, const gumbel_screen_header *header,
                               const int32_t *dither, double gamma,
                               const gumbel_screen_planes *planes,
                               gumbel_screen_hidden_error *hidden_error);

/* Rounds h to a single plane in layout NIBBLES, groups of 64 columns at each `stride` bytes, by the
 * random bits of the columns. `fine` are the terms that gumbel_screen_split_hidden() gave for h.
 * Writes the terms of coarse bounds, by products of n - 8, and of the bounds by products of q. */
void gumbel_screen_round_hidden(const float *h, int64_t columns, const gumbel_screen_header *header,
                                const int32_t *dither, const gumbel_screen_hidden_error *fine,
                                int8_t *plane, int64_t stride, gumbel_screen_hidden_error *coarse,
                                gumbel_screen_hidden_error *refined);

/* An upper bound on the norm of a row's m - 15/2. */
float gumbel_screen_bound_low_nibbles(int64_t columns);

/* Bounds the difference of unit * (plane * q.high + q.low) - shift and logit / step, including the
 * rounding of gumbel_screen_bound_logit(). max_entry bounds a single |e|. */
GUMBEL_INLINE float gumbel_screen_sum_width(const gumbel_screen_hidden_error *r,
                                            const gumbel_screen_block *b, float max_entry)
{
    float entry = b->error < max_entry ? b->error : max_entry;
    float sum = entry * r->outlier_sum + b->error * r->inlier_norm + b->size * r->residual +
                (b->size + b->error) * r->rounding + r->dithered;
    return sum * (1.0f + 0x1p-20f);
}

GUMBEL_INLINE float gumbel_screen_error_width(const gumbel_screen_hidden_error *r,
                                              const gumbel_screen_block *b)
{
    return gumbel_screen_sum_width(r, b, GUMBEL_SCREEN_ENTRY);
}

/* The width of coarse bounds, with n - 8 in place of q. */
GUMBEL_INLINE float gumbel_screen_coarse_width(const gumbel_screen_hidden_error *coarse,
                                               const gumbel_screen_block *b, float low_nibbles)
{
    gumbel_screen_block coarse_block = {(b->error + low_nibbles) * (1.0f + 0x1p-20f), b->size};
    return gumbel_screen_sum_width(coarse, &coarse_block, 16.0f * GUMBEL_SCREEN_ENTRY);
}

/* A bound of a logit, with W = gumbel_screen_error_width(): an upper bound with width = W - shift
 * and tiny = GUMBEL_SCREEN_TINY, a lower bound with -W - shift and -GUMBEL_SCREEN_TINY. */
GUMBEL_INLINE float gumbel_screen_bound_logit(float step, float unit, float plane, float width,
                                              float tiny, int32_t high, int32_t low)
{
    float t = fmaf(plane, (float)high, (float)low);
    return fmaf(step, unit * t + width, tiny);
}

#endif
