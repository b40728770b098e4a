/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode (n = 1) reads each weight once and multiplies it on the way: the speed is that of the
 * memory. Prefill widens four rows of weights into scratch that stays in the L2 cache, and
 * multiplies them with four rows of x at a time, so that a load serves four products. Both sum in
 * the order of lanes.h, so the bits do not depend on the path.
 */
#include "decoder/linear.h"

#include <stdbool.h>

#include "decoder/lanes.h"

#define BLOCK 4
/* More pieces than threads, so that a thread that was held up leaves its share to the others. */
#define PIECES_PER_THREAD 4
/* Below about this many products, waking threads costs more than they save. */
#define SERIAL_PRODUCTS (1 << 16)

typedef struct linear_call {
    const linear_output *outputs;
    int32_t count;
    int32_t pieces;
    const float *x;
    int32_t n;
    int64_t cols;
    float *scratch;
} linear_call;

/* Rows [first, last) of one output. */
typedef struct linear_part {
    const gumbel_tensor *weight;
    const float *x;
    int32_t n;
    int64_t first;
    int64_t last;
    float *out;
    float *scratch; /* [BLOCK, cols] */
} linear_part;

static const void *weight_row(const gumbel_tensor *weight, int64_t row) {
    int64_t size = weight->dtype == GUMBEL_FLOAT32 ? 4 : 2;
    return (const char *)weight->data + row * weight->cols * size;
}

/* The products of elements `at` .. `at` + count - 1 of `rows` rows of weights and `inputs` rows of
 * x: numbers up to BLOCK that are constants wherever this is inlined, so that `sum` is registers.
 */
LANES_INLINE void multiply_step(const void *const *w, gumbel_dtype dtype, int rows, const float *x,
                                int inputs, int64_t cols, int64_t at, int64_t count,
                                lanes sum[BLOCK][BLOCK]) {
    lanes input[BLOCK];
    for (int i = 0; i < inputs; i++) {
        lanes_load(&input[i], x + i * cols, at, count, GUMBEL_FLOAT32);
    }
    for (int r = 0; r < rows; r++) {
        lanes weight;
        lanes_load(&weight, w[r], at, count, dtype);
        for (int i = 0; i < inputs; i++) {
            sum[r][i] += weight * input[i];
        }
    }
}

/* out[i * stride + r] = dot(w[r], x[i]). */
LANES_INLINE void multiply_block(const void *const *w, gumbel_dtype dtype, int rows, const float *x,
                                 int inputs, int64_t cols, float *out, int64_t stride) {
    lanes sum[BLOCK][BLOCK] = {0};
    int64_t whole = cols - cols % LANES;
    for (int64_t at = 0; at < whole; at += LANES) {
        multiply_step(w, dtype, rows, x, inputs, cols, at, LANES, sum);
    }
    if (whole < cols) {
        multiply_step(w, dtype, rows, x, inputs, cols, whole, cols - whole, sum);
    }
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < inputs; i++) {
            out[i * stride + r] = lanes_sum(&sum[r][i]);
        }
    }
}

/* `rows` rows of weights against all of x. */
LANES_INLINE void multiply_rows(const linear_part *part, const void *const *w, gumbel_dtype dtype,
                                int rows, float *out) {
    int64_t cols = part->weight->cols, stride = part->weight->rows;
    int32_t i = 0;
    for (; i + BLOCK <= part->n; i += BLOCK) {
        multiply_block(w, dtype, rows, part->x + i * cols, BLOCK, cols, out + i * stride, stride);
    }
    for (; i < part->n; i++) {
        multiply_block(w, dtype, rows, part->x + i * cols, 1, cols, out + i * stride, stride);
    }
}

LANES_INLINE void widen_row(const void *row, gumbel_dtype dtype, int64_t count, float *out) {
    lanes value;
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        lanes_load(&value, row, at, LANES, dtype);
        memcpy(out + at, &value, sizeof value);
    }
    if (at < count) {
        lanes_load(&value, row, at, count - at, dtype);
        memcpy(out + at, &value, (size_t)(count - at) * sizeof *out);
    }
}

/* Four rows at once while there are four: one load of x serves them all. */
LANES_INLINE void multiply_part(const linear_part *part, gumbel_dtype dtype) {
    int64_t cols = part->weight->cols;
    bool widened = part->n > 1 && dtype != GUMBEL_FLOAT32;
    for (int64_t row = part->first; row < part->last; row += BLOCK) {
        int64_t left = part->last - row;
        const void *w[BLOCK];
        for (int r = 0; r < BLOCK && r < left; r++) {
            w[r] = weight_row(part->weight, row + r);
            if (widened) {
                widen_row(w[r], dtype, cols, part->scratch + r * cols);
                w[r] = part->scratch + r * cols;
            }
        }
        gumbel_dtype kind = widened ? GUMBEL_FLOAT32 : dtype;
        if (left >= BLOCK && widened) {
            multiply_rows(part, w, GUMBEL_FLOAT32, BLOCK, part->out + row);
        } else if (left >= BLOCK) {
            multiply_rows(part, w, dtype, BLOCK, part->out + row);
        } else {
            for (int r = 0; r < left; r++) {
                multiply_rows(part, w + r, kind, 1, part->out + row + r);
            }
        }
    }
}

LANES_INLINE void linear_rows_body(const linear_part *part) {
    switch (part->weight->dtype) {
    case GUMBEL_FLOAT32:
        multiply_part(part, GUMBEL_FLOAT32);
        break;
    case GUMBEL_FLOAT16:
        multiply_part(part, GUMBEL_FLOAT16);
        break;
    case GUMBEL_BFLOAT16:
        multiply_part(part, GUMBEL_BFLOAT16);
        break;
    }
}

LANES_DISPATCH(linear_rows, linear_part)

/* Piece `index`: its share of the rows of every output. */
static void linear_piece(void *argument, int32_t index) {
    const linear_call *call = argument;
    for (int32_t o = 0; o < call->count; o++) {
        const gumbel_tensor *weight = call->outputs[o].weight;
        int64_t blocks = (weight->rows + BLOCK - 1) / BLOCK;
        int64_t first = blocks * index / call->pieces * BLOCK;
        int64_t last = blocks * (index + 1) / call->pieces * BLOCK;
        linear_part part = {.weight = weight,
                            .x = call->x,
                            .n = call->n,
                            .first = first,
                            .last = last < weight->rows ? last : weight->rows,
                            .out = call->outputs[o].out,
                            .scratch = call->scratch + index * BLOCK * call->cols};
        linear_rows(&part);
    }
}

size_t linear_scratch(const pool *p, int64_t cols) {
    return (size_t)pool_threads(p) * PIECES_PER_THREAD * BLOCK * (size_t)cols;
}

void linear(pool *p, const linear_output *outputs, int32_t count, const float *x, int32_t n,
            float *scratch) {
    int64_t cols = outputs[0].weight->cols;
    int64_t rows = 0;
    for (int32_t o = 0; o < count; o++) {
        rows += outputs[o].weight->rows;
    }
    bool serial = rows * cols < SERIAL_PRODUCTS / n;
    linear_call call = {outputs, count,  serial ? 1 : pool_threads(p) * PIECES_PER_THREAD, x, n,
                        cols,    scratch};
    pool_run(p, call.pieces, linear_piece, &call);
}

void linear_widen(const void *row, gumbel_dtype dtype, int64_t count, float *out) {
    widen_row(row, dtype, count, out);
}
