/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode (one row of x) multiplies 16-bit weights as it reads them: the speed is that of the
 * memory. Prefill widens four rows of weights into scratch that stays in the cache, and multiplies
 * them with four rows of x at a time where there are 32 registers, so that a load serves four
 * products; elsewhere with one. Both sum in the order of
 * lanes.h over packed rows, so that the bits do not depend on the path.
 *
 * Packed: of each 32 elements the 16 even ones, then the 16 odd ones; the last 32 are padded with
 * zeros. 16-bit weights load into 32-bit lanes in this order without a shuffle.
 */
#include "decoder/model/linear.h"

#include <stdbool.h>

#include "decoder/model/lanes.h"

#define BLOCK 4
#define PACK  (2 * LANES)
/* More tiles than threads, to balance the load. */
#define TILES_PER_THREAD 4
/* For fewer products, waking threads costs more than it saves. */
#define SERIAL_PRODUCTS (1 << 16)

typedef struct linear_call {
    const linear_output *outputs;
    int32_t count;
    int32_t tiles;
    const float *x; /* [n, padded], packed */
    int32_t n;
    int64_t cols;
    int64_t padded;
    float *scratch; /* [tiles, BLOCK, padded] */
} linear_call;

/* Rows [first, last) of one output. */
typedef struct linear_part {
    const linear_call *call;
    const gumbel_tensor *weight;
    int64_t first;
    int64_t last;
    float *out;
    float *scratch; /* [BLOCK, padded] */
} linear_part;

static int64_t padded_size(int64_t cols) { return (cols + PACK - 1) / PACK * PACK; }

static const void *weight_row(const gumbel_tensor *weight, int64_t row)
{
    int64_t size = weight->dtype == GUMBEL_FLOAT32 ? 4 : 2;
    return (const char *)weight->data + row * weight->cols * size;
}

/* Loads the even and the odd of up to 32 16-bit elements; zeros from `count` on. */
LANES_INLINE void load_halves(const uint16_t *row, int64_t count, gumbel_dtype dtype, lanes *even,
                              lanes *odd)
{
    lanes_bits bits = {0};
    memcpy(&bits, row, (size_t)count * sizeof *row);
    lanes_widen(even, &bits, dtype);
    bits >>= 16;
    lanes_widen(odd, &bits, dtype);
}

static void pack_floats(const float *row, int64_t cols, float *out)
{
    for (int64_t at = 0; at < cols; at += PACK) {
        for (int64_t i = 0; i < PACK; i++) {
            out[at + i / 2 + i % 2 * LANES] = at + i < cols ? row[at + i] : 0;
        }
    }
}

LANES_INLINE void pack_halves(const uint16_t *row, int64_t cols, gumbel_dtype dtype, float *out)
{
    lanes even, odd;
    for (int64_t at = 0; at < cols; at += PACK) {
        if (cols - at >= PACK) {
            load_halves(row + at, PACK, dtype, &even, &odd);
        } else {
            load_halves(row + at, cols - at, dtype, &even, &odd);
        }
        memcpy(out + at, &even, sizeof even);
        memcpy(out + at + LANES, &odd, sizeof odd);
    }
}

/* out[i * stride + r] = dot(w[r], x[i]), all packed. `rows` and `inputs`, up to BLOCK, are
 * constants where this is inlined, so that `sum` is in registers. */
LANES_INLINE void multiply_packed(const float *w, int rows, const float *x, int inputs,
                                  int64_t padded, float *out, int64_t stride)
{
    lanes sum[BLOCK][BLOCK] = {0};
    for (int64_t at = 0; at < padded; at += LANES) {
        lanes input[BLOCK];
#pragma GCC unroll 4
        for (int i = 0; i < inputs; i++) {
            memcpy(&input[i], x + i * padded + at, sizeof input[i]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            lanes weight;
            memcpy(&weight, w + r * padded + at, sizeof weight);
#pragma GCC unroll 4
            for (int i = 0; i < inputs; i++) {
                sum[r][i] += weight * input[i];
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < inputs; i++) {
            out[i * stride + r] = lanes_sum(&sum[r][i]);
        }
    }
}

/* sum[r] += the products of up to 32 elements of each of `rows` rows, with packed x. */
LANES_INLINE void multiply_step(const uint16_t *w, int64_t cols, gumbel_dtype dtype, int rows,
                                const float *x, int64_t count, lanes sum[BLOCK])
{
    lanes first, second;
    memcpy(&first, x, sizeof first);
    memcpy(&second, x + LANES, sizeof second);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        lanes even, odd;
        load_halves(w + r * cols, count, dtype, &even, &odd);
        sum[r] += even * first;
        sum[r] += odd * second;
    }
}

/* out[r] = dot(w[r], x) for one packed x and 16-bit weights in place. */
LANES_INLINE void multiply_halves(const uint16_t *w, int64_t cols, gumbel_dtype dtype, int rows,
                                  const float *x, float *out)
{
    lanes sum[BLOCK] = {0};
    int64_t whole = cols - cols % PACK;
    for (int64_t at = 0; at < whole; at += PACK) {
        multiply_step(w + at, cols, dtype, rows, x + at, PACK, sum);
    }
    if (whole < cols) {
        multiply_step(w + whole, cols, dtype, rows, x + whole, cols - whole, sum);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        out[r] = lanes_sum(&sum[r]);
    }
}

LANES_INLINE void direct_part(const linear_part *part, gumbel_dtype dtype)
{
    int64_t cols = part->weight->cols;
    int64_t row = part->first;
    for (; row + BLOCK <= part->last; row += BLOCK) {
        multiply_halves(weight_row(part->weight, row), cols, dtype, BLOCK, part->call->x,
                        part->out + row);
    }
    for (; row < part->last; row++) {
        multiply_halves(weight_row(part->weight, row), cols, dtype, 1, part->call->x,
                        part->out + row);
    }
}

/* Multiplies `rows` packed rows in scratch with all of x, by as many as registers allow. */
LANES_INLINE void multiply_all(const linear_part *part, int rows, int registers, float *out)
{
    const linear_call *call = part->call;
    int64_t stride = part->weight->rows;
    int32_t i = 0;
    for (; registers >= 32 && i + BLOCK <= call->n; i += BLOCK) {
        multiply_packed(part->scratch, rows, call->x + i * call->padded, BLOCK, call->padded,
                        out + i * stride, stride);
    }
    for (; i < call->n; i++) {
        multiply_packed(part->scratch, rows, call->x + i * call->padded, 1, call->padded,
                        out + i * stride, stride);
    }
}

LANES_INLINE void packed_part(const linear_part *part, int registers)
{
    const gumbel_tensor *weight = part->weight;
    for (int64_t row = part->first; row < part->last; row += BLOCK) {
        int64_t count = part->last - row < BLOCK ? part->last - row : BLOCK;
        for (int64_t r = 0; r < count; r++) {
            const void *from = weight_row(weight, row + r);
            float *to = part->scratch + r * part->call->padded;
            if (weight->dtype == GUMBEL_BFLOAT16) {
                pack_halves(from, weight->cols, GUMBEL_BFLOAT16, to);
            } else if (weight->dtype == GUMBEL_FLOAT16) {
                pack_halves(from, weight->cols, GUMBEL_FLOAT16, to);
            } else {
                pack_floats(from, weight->cols, to);
            }
        }
        if (count == BLOCK) {
            multiply_all(part, BLOCK, registers, part->out + row);
        } else {
            /* The last rows of a matrix: scratch rows from `count` on are unused. */
            for (int64_t r = 0; r < count; r++) {
                linear_part one = *part;
                one.scratch += r * part->call->padded;
                multiply_all(&one, 1, registers, part->out + row + r);
            }
        }
    }
}

LANES_INLINE void linear_rows_body(const linear_part *part, int registers)
{
    if (part->call->n == 1 && part->weight->dtype == GUMBEL_BFLOAT16) {
        direct_part(part, GUMBEL_BFLOAT16);
    } else if (part->call->n == 1 && part->weight->dtype == GUMBEL_FLOAT16) {
        direct_part(part, GUMBEL_FLOAT16);
    } else {
        packed_part(part, registers);
    }
}

LANES_DISPATCH(linear_rows, linear_part)

/* Multiplies tile `index`: a range of rows of every output. */
static void multiply_tile(void *argument, int32_t index)
{
    const linear_call *call = argument;
    for (int32_t o = 0; o < call->count; o++) {
        const gumbel_tensor *weight = call->outputs[o].weight;
        int64_t blocks = (weight->rows + BLOCK - 1) / BLOCK;
        int64_t first = blocks * index / call->tiles * BLOCK;
        int64_t last = blocks * (index + 1) / call->tiles * BLOCK;
        linear_part part = {.call = call,
                            .weight = weight,
                            .first = first,
                            .last = last < weight->rows ? last : weight->rows,
                            .out = call->outputs[o].out,
                            .scratch = call->scratch + index * BLOCK * call->padded};
        linear_rows(&part);
    }
}

size_t linear_scratch(const pool *p, int64_t cols, int32_t n)
{
    size_t rows = (size_t)pool_threads(p) * TILES_PER_THREAD * BLOCK + (size_t)n;
    return rows * (size_t)padded_size(cols);
}

void linear_multiply(pool *p, const linear_output *outputs, int32_t count, const float *x,
                     int32_t n, float *scratch)
{
    int64_t cols = outputs[0].weight->cols;
    int64_t padded = padded_size(cols);
    int64_t rows = 0;
    for (int32_t o = 0; o < count; o++) {
        rows += outputs[o].weight->rows;
    }
    for (int32_t i = 0; i < n; i++) {
        pack_floats(x + i * cols, cols, scratch + i * padded);
    }
    bool serial = rows * cols < SERIAL_PRODUCTS / n;
    linear_call call = {.outputs = outputs,
                        .count = count,
                        .tiles = serial ? 1 : pool_threads(p) * TILES_PER_THREAD,
                        .x = scratch,
                        .n = n,
                        .cols = cols,
                        .padded = padded,
                        .scratch = scratch + n * padded};
    pool_run(p, call.tiles, multiply_tile, &call);
}

void linear_widen(const void *row, gumbel_dtype dtype, int64_t count, float *out)
{
    if (dtype == GUMBEL_FLOAT32) {
        memcpy(out, row, (size_t)count * sizeof *out);
        return;
    }
    for (int64_t at = 0; at < count; at += LANES) {
        int64_t n = count - at < LANES ? count - at : LANES;
        lanes_bits bits = {0};
        lanes value;
        for (int64_t i = 0; i < n; i++) {
            bits[i] = ((const uint16_t *)row)[at + i];
        }
        lanes_widen(&value, &bits, dtype);
        memcpy(out + at, &value, (size_t)n * sizeof *out);
    }
}
