/* SPDX-License-Identifier: Apache-2.0
 *
 * The screen of a head: its weights rounded to a byte each, and how far those bytes can be off
 * (docs/maths.md, section 14). What every backend must read and bound alike.
 *
 * A buffer is a header, two bounds a block of 64 rows, a step a row, and the copy, each part at a
 * multiple of 64 bytes, in tiles of 1024. A weight w of a row with step s is s (q + e), q an
 * integer in -127..127.
 */
#ifndef GUMBEL_MATHS_SCREEN_BOUND_H
#define GUMBEL_MATHS_SCREEN_BOUND_H

#include "maths/noise.h"

#include <stddef.h>

#define GUMBEL_SCREEN_MAGIC   UINT64_C(0x4e45455243534247) /* "GBSCREEN" */
#define GUMBEL_SCREEN_VERSION 1
/* Columns beyond this could overflow a sum of bytes: 255 * 128 * D < 2^31. */
#define GUMBEL_SCREEN_COLUMNS_MOST 65535
/* Candidates that a list holds. */
#define GUMBEL_SCREEN_LIST_MOST 256
/* The most that a weight is off, in steps: 1/2, and what the division by the step rounds. */
#define GUMBEL_SCREEN_ENTRY 0x1.001p-1f
/* The smallest step. */
#define GUMBEL_SCREEN_STEP_LEAST 0x1p-100f
/* A hidden state of more than this, or logits that may be, take the full pass. */
#define GUMBEL_SCREEN_HIDDEN_MOST 0x1p100
#define GUMBEL_SCREEN_LOGIT_MOST  0x1p120
/* Subnormal roundings of a logit, in any order, are less than this together. */
#define GUMBEL_SCREEN_TINY 0x1p-126f
/* Hidden dimensions that are bounded by their own size, at most. */
#define GUMBEL_SCREEN_OUTLIERS_MOST 64

typedef enum gumbel_screen_layout {
    GUMBEL_SCREEN_LAYOUT_NONE = 0, /* of a device without screens */
    /* [V / 16][D / 64][16 quads of columns][16 rows][4 columns] of q + 128 */
    GUMBEL_SCREEN_LAYOUT_CPU = 1,
    /* CUDA: tiles of 128 rows and columns of q (cuda/fused/screen/screen_params.h) */
    GUMBEL_SCREEN_LAYOUT_TILES = 2,
} gumbel_screen_layout;

typedef struct gumbel_screen_header {
    uint64_t magic;
    uint32_t version;
    uint32_t layout;   /* a gumbel_screen_layout */
    int64_t rows;      /* V */
    int64_t columns;   /* D */
    uint32_t dtype;    /* of the weights */
    int32_t list_most; /* candidates that a list holds, 1..GUMBEL_SCREEN_LIST_MOST */
    float error;       /* the most of all blocks' */
    float weight;      /* the most of all rows' |w| */
    uint64_t check;    /* gumbel_screen_check_of() */
} gumbel_screen_header;

/* What holds for all 64 rows of a block. */
typedef struct gumbel_screen_block {
    float error; /* E >= |e| */
    float size;  /* N >= |q| */
} gumbel_screen_block;

/* Where the parts of a buffer are. */
typedef struct gumbel_screen_parts {
    int64_t blocks;
    int64_t columns; /* of the copy: D in whole 64 or, in tiles, 128 */
    size_t bounds, steps, copy, bytes;
} gumbel_screen_parts;

/* What a hidden state h = unit * k + r adds to the bound of a block, in units of a row's step. All
 * are rounded up. */
typedef struct gumbel_screen_reach {
    float unit;     /* u */
    float outliers; /* |h| summed over the dimensions O */
    float rest;     /* |h| in the others, as a norm */
    float grain;    /* |r|, and what the conversion of the sums rounds */
    float path;     /* gamma |h|: the roundings of the library's own product */
} gumbel_screen_reach;

/* Lay out the screen of [rows, columns] weights; 0 where it would be larger than any memory. That
 * of a CPU, and of any layout. */
int gumbel_screen_lay_out(int64_t rows, int64_t columns, gumbel_screen_parts *parts);
int gumbel_screen_lay_out_as(gumbel_screen_layout layout, int64_t rows, int64_t columns,
                             gumbel_screen_parts *parts);

uint64_t gumbel_screen_check_of(const gumbel_screen_header *header);

/* The planes of a hidden state: k = size * high + low, 64 columns after each other. */
typedef struct gumbel_screen_planes {
    int size;           /* 256 or 128 */
    int8_t *high, *low; /* in whole 64 columns, zeros behind the last */
    int64_t apart;      /* bytes from 64 columns to the next */
} gumbel_screen_planes;

/* Split h, [columns], into planes, whose products with bytes are exact. `header` is the head's;
 * gamma bounds the roundings of the backend's own product, sums included, by |w| |h|. Returns 0
 * where h is not finite, or the logits may be too large. */
int gumbel_screen_split(const float *h, int64_t columns, const gumbel_screen_header *header,
                        double gamma, const gumbel_screen_planes *planes,
                        gumbel_screen_reach *reach);

/* How far unit * (plane * q.high + q.low) may be from a logit over its row's step, with room for
 * the operations of gumbel_screen_end(). */
GUMBEL_INLINE float gumbel_screen_width(const gumbel_screen_reach *r, const gumbel_screen_block *b)
{
    float entry = b->error < GUMBEL_SCREEN_ENTRY ? b->error : GUMBEL_SCREEN_ENTRY;
    float sum = entry * r->outliers + b->error * r->rest + b->size * r->grain +
                (b->size + b->error) * r->path;
    return sum * (1.0f + 0x1p-20f);
}

/* The end of a logit's interval: the upper one for width > 0 and tiny = GUMBEL_SCREEN_TINY, the
 * lower one for both negative. */
GUMBEL_INLINE float gumbel_screen_end(float step, float unit, float plane, float width, float tiny,
                                      int32_t high, int32_t low)
{
    float t = fmaf(plane, (float)high, (float)low);
    return fmaf(step, unit * t + width, tiny);
}

#endif
