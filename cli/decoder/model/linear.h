/* SPDX-License-Identifier: Apache-2.0
 *
 * The matrix products of the trunk: activations times weights that stay as the file has them.
 */
#ifndef DECODER_LINEAR_H
#define DECODER_LINEAR_H

#include <stddef.h>
#include <stdint.h>

#include "decoder/pool.h"
#include "gumbel/gumbel.h"

/* Weights that take the same input, in one call. */
#define LINEAR_MAX_OUTPUTS 3

typedef struct linear_output {
    const gumbel_tensor *weight; /* [rows, cols], stride 0 */
    float *out;                  /* [n, rows] */
} linear_output;

/* Floats of scratch that linear() needs for up to `cols` columns and `n` rows of x. */
size_t linear_scratch(const pool *p, int64_t cols, int32_t n);

/* linear(): out[i, r] = dot(weight[r], x[i]) for each output. An element's value depends on its row
 * of weights and its row of x alone, never on n, the threads, or the other outputs.
 *  x        [n, cols]
 *  count    1..LINEAR_MAX_OUTPUTS; all weights have the same cols
 *  scratch  [linear_scratch()]
 *  aliasing out and scratch overlap nothing */
void linear(pool *p, const linear_output *outputs, int32_t count, const float *x, int32_t n,
            float *scratch);

/* Widen `count` elements of `row` to float32, exactly. */
void linear_widen(const void *row, gumbel_dtype dtype, int64_t count, float *out);

#endif /* DECODER_LINEAR_H */
