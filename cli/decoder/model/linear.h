/* SPDX-License-Identifier: Apache-2.0
 *
 * The matrix products of the trunk: activations times weights in the file's dtype.
 */
#ifndef DECODER_LINEAR_H
#define DECODER_LINEAR_H

#include <stddef.h>
#include <stdint.h>

#include "decoder/pool.h"
#include "gumbel/gumbel.h"

/* Largest number of weight matrices that one call multiplies by the same input. */
#define LINEAR_MAX_OUTPUTS 3

typedef struct linear_output {
    const gumbel_tensor *weight; /* [rows, cols], stride 0 */
    float *out;                  /* [n, rows] */
} linear_output;

/* Returns the floats of scratch of linear_multiply(), for `cols` columns and `n` rows of x. */
size_t linear_count_scratch(const pool *p, int64_t cols, int32_t n);

/* linear_multiply(): out[i, r] = dot(weight[r], x[i]) for each output. The bits of an element
 * depend on its row of weights and its row of x only, not on n, the threads or the other outputs.
 *  x        [n, cols]
 *  count    1..LINEAR_MAX_OUTPUTS; all weights have the same cols
 *  scratch  [linear_count_scratch()]; out and scratch overlap no other argument */
void linear_multiply(pool *p, const linear_output *outputs, int32_t count, const float *x,
                     int32_t n, float *scratch);

/* Widens `count` elements of `row` to float32, exactly. */
void linear_widen(const void *row, gumbel_dtype dtype, int64_t count, float *out);

#endif /* DECODER_LINEAR_H */
