/* SPDX-License-Identifier: Apache-2.0
 *
 * The screen of a head: its weights quantized to int8, and bounds of the quantization error
 * (docs/maths.md, section 14). All backends read this format and compute the bounds with this code.
 *
 * A buffer holds a header, two bounds for each block of 64 rows, a quantization step for each row,
 * the dither of each column, and the quantized copy. Each of these arrays begins at a multiple of
 * 64 bytes, or of 1024 in layout TILES. In a row with step s, a weight of column j is
 * w = s (q - u_j + e): q is the stored integer, in -127..127, u_j is the dither, and e is the
 * quantization error in steps.
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
/* Dither is a multiple of this unit, from -1/2 up to, but not including, 1/2. */
#define GUMBEL_SCREEN_DITHER_UNIT 0x1p-24f
/* c: with random dither the sum of e_j h_j over the columns exceeds c |h| with a chance below
 * 2 exp(-6 c^2) < 2^-82, for each row of weights and each h that does not depend on the dither. */
#define GUMBEL_SCREEN_DEVIATION 3.0966
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
} gumbel_screen_layout;

typedef struct gumbel_screen_header {
    uint64_t magic;
    uint32_t version;
    uint32_t layout;      /* a gumbel_screen_layout */
    int64_t rows;         /* V */
    int64_t columns;      /* D */
    uint32_t dtype;       /* of the weights */
    int32_t list_max;     /* capacity of a candidate list, 1..GUMBEL_SCREEN_LIST_MAX */
    uint32_t certificate; /* a gumbel_screen_certificate */
    uint32_t unused;      /* 0 */
    float error;          /* largest gumbel_screen_block.error */
    float weight;         /* largest |w| of all rows */
    uint64_t check;       /* gumbel_screen_checksum() */
} gumbel_screen_header;

/* Bounds that hold for all 64 rows of a block. */
typedef struct gumbel_screen_block {
    float error; /* E: upper bound on the norm of a row's e */
    float size;  /* N: upper bound on the norm of a row's q; N + E bounds that of w / s */
} gumbel_screen_block;

/* The arrays of a buffer. */
typedef struct gumbel_screen_offsets {
    int64_t blocks;       /* of 64 rows */
    int64_t columns;      /* of the copy: D rounded up to 64, or to 128 in layout TILES */
    size_t bounds, steps; /* byte offsets of the arrays */
    size_t dither;        /* int32 [columns], in GUMBEL_SCREEN_DITHER_UNIT; 0 in padding */
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

/* The quantization step of a row whose largest |w| is `max_weight`, which is finite; rounded up so
 * that |x| <= 126.5 and |q| <= 127. */
GUMBEL_INLINE float gumbel_screen_choose_step(float max_weight)
{
    float step = max_weight * (1.0f / 126.5f) * (1.0f + 0x1p-21f);
    return step < GUMBEL_SCREEN_STEP_MIN ? GUMBEL_SCREEN_STEP_MIN : step;
}

/* A weight w / s, in x, rounded to an integer behind its dither: the integer q, and in *error the
 * difference of q - u and x rounded to GUMBEL_SCREEN_DITHER_UNIT, which is exact. |x| <= 126.5. */
GUMBEL_INLINE int32_t gumbel_screen_round(float x, int32_t dither, float *error)
{
    int32_t sum = (int32_t)rintf(x * 0x1p24f) + dither + (1 << 23);
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

/* Bounds the difference of unit * (plane * q.high + q.low) - shift and logit / step, including the
 * rounding of gumbel_screen_bound_logit(). */
GUMBEL_INLINE float gumbel_screen_error_width(const gumbel_screen_hidden_error *r,
                                              const gumbel_screen_block *b)
{
    float entry = b->error < GUMBEL_SCREEN_ENTRY ? b->error : GUMBEL_SCREEN_ENTRY;
    float sum = entry * r->outlier_sum + b->error * r->inlier_norm + b->size * r->residual +
                (b->size + b->error) * r->rounding + r->dithered;
    return sum * (1.0f + 0x1p-20f);
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
