/* SPDX-License-Identifier: Apache-2.0
 *
 * Intervals of logits by a screen, computed by plain loops from its bytes and the library's bounds,
 * and compared with the library's logits.
 */
#ifndef TESTS_SCREEN_INTERVALS_H
#define TESTS_SCREEN_INTERVALS_H

#include "gumbel/screen.h"
#include "generated_heads.h"
#include "maths/screen_bound.h"

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

extern const char *const mutant_names[MUTANTS];

/* The bounds of a logit: by both planes of a hidden state, or of nibbles by its single plane, with
 * the high nibbles alone or with both. */
typedef enum bound_kind { BOUND_FINE, BOUND_COARSE, BOUND_REFINED, BOUND_KINDS } bound_kind;

extern const char *const bound_names[BOUND_KINDS];

/* The fractions of their half widths that the errors of logits take. */
typedef struct seen {
    long checked, outside;
    double max_used, square; /* largest; sum of squares */
} seen;

/* A screen in the CPU's layout, and the head that it belongs to. */
typedef struct screened {
    const generated_head *head;
    unsigned char *screen; /* freed by the caller */
    gumbel_screen_header header;
    gumbel_screen_offsets offsets;
    int plane; /* values of the low plane of hidden states */
} screened;

/* The screen of a head, with dither from a fixed seed. */
screened make_screened(gumbel_device *device, const generated_head *head, int plane,
                       gumbel_screen_certificate certificate, gumbel_screen_format format);

/* Makes a screen again after its dither, or its words of columns, were changed. The number of rows
 * is a multiple of 64. */
void requantize(screened *s);

/* A hidden state, split into two planes or rounded to one, and the terms of its bounds. */
typedef struct hidden_planes {
    int8_t *high, *low, *single; /* `high` is freed by the caller, and owns all three */
    gumbel_screen_hidden_error errors[BOUND_KINDS];
} hidden_planes;

hidden_planes split_hidden(const screened *s, const float *h);

/* The quantization step of a row; the bounds of its block of 64 rows. */
float step_of(const screened *s, int64_t row);
gumbel_screen_block block_of(const screened *s, int64_t row);

/* The width of a kind of bounds. */
float width_of(const screened *s, bound_kind kind, const gumbel_screen_hidden_error *own,
               const gumbel_screen_block *block);

/* The dither of each column, or of nibbles its gumbel_screen_column. */
int32_t *dither_of(const screened *s);

/* The integer q of a weight; its quantization error in steps, or of BOUND_COARSE in 16 steps. */
int byte_of(const screened *s, int64_t row, int64_t i);
float error_of(const screened *s, bound_kind kind, int64_t row, int64_t i);

/* Adds to *into whether the logits of hidden state h are within their intervals. */
void check_logits(const screened *s, const float *h, bound_kind kind, mutant m, seen *into);

/* A float32 head of 192 rows of equal weights w, 62.5 steps and a little more, beside one of 126.5
 * steps. Each is rounded to 63 without dither, so that with h = 1 all quantization errors have one
 * sign and the largest sum. The caller frees its weights. */
generated_head generate_half_steps(int64_t columns, float w);
void fill_ones(float *h, int64_t columns);

#endif
