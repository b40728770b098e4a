/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode (one row of x) multiplies 16-bit weights in place, at the speed of the memory. Prefill
 * first widens four rows of weights into scratch, which stays in the cache, and multiplies each by
 * four rows of x at a time with 32 vector registers (each load then serves four products), by one
 * row with fewer. Both methods sum packed rows in the order of lanes.h, so that the bits do not
 * depend on the method.
 *
 * A packed row holds, of each 32 elements, the 16 even ones, then the 16 odd ones, and is padded
 * with zeros to a multiple of 32. 16-bit weights load into 32-bit lanes in this order without a
 * shuffle.
 */
#include "decoder/model/linear.h"

#include <stdbool.h>

#include "decoder/model/lanes.h"

#define BLOCK 4           /* rows of weights, or of x, multiplied together */
#define PACK  (2 * LANES) /* elements that are reordered together */
/* More tiles than threads, to balance the load. */
#define TILES_PER_THREAD 4
/* For fewer multiplications, waking threads costs more time than it saves. */
#define SERIAL_PRODUCTS (1 << 16)

typedef struct linear_call {
    const linear_output *outputs;
    int32_t count;
    int32_t tiles;
    const float *x; /* [n, padded], packed */
    int32_t n;
    int64_t cols;
    int64_t padded; /* cols, rounded up to a multiple of PACK */
    float *scratch; /* [tiles, BLOCK, padded] */
} linear_call;

/* Rows [first, last) of one output, which one thread computes. */
typedef struct row_range {
    const linear_call *call;
    const gumbel_tensor *weight;
    int64_t first;
    int64_t last;
    float *out;
    float *scratch; /* [BLOCK, padded] */
} row_range;

static int64_t pad_cols(int64_t cols) { return (cols + PACK - 1) / PACK * PACK; }

static const void *get_weight_row(const gumbel_tensor *weight, int64_t row)
{
    int64_t size = weight->dtype == GUMBEL_FLOAT32 ? 4 : 2;
    return (const char *)weight->data + row * weight->cols * size;
}

/* Loads the even and the odd elements of `count` <= 32 16-bit elements; zeros from `count` on. */
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
 * constants in each inlined copy, so that `sum` stays in registers. */
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
    int64_t full_packs = cols - cols % PACK;
    for (int64_t at = 0; at < full_packs; at += PACK) {
        multiply_step(w + at, cols, dtype, rows, x + at, PACK, sum);
    }
    if (full_packs < cols) {
        multiply_step(w + full_packs, cols, dtype, rows, x + full_packs, cols - full_packs, sum);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        out[r] = lanes_sum(&sum[r]);
    }
}

/* Multiplies 16-bit rows in place by one row of x. */
LANES_INLINE void multiply_rows_in_place(const row_range *range, gumbel_dtype dtype)
{
    int64_t cols = range->weight->cols;
    int64_t row = range->first;
    for (; row + BLOCK <= range->last; row += BLOCK) {
        multiply_halves(get_weight_row(range->weight, row), cols, dtype, BLOCK, range->call->x,
                        range->out + row);
    }
    for (; row < range->last; row++) {
        multiply_halves(get_weight_row(range->weight, row), cols, dtype, 1, range->call->x,
                        range->out + row);
    }
}

/* Multiplies `rows` packed rows in scratch by all rows of x, BLOCK or one of them at a time. */
LANES_INLINE void multiply_scratch_rows(const row_range *range, int rows, int registers, float *out)
{
    const linear_call *call = range->call;
    int64_t stride = range->weight->rows;
    int32_t i = 0;
    for (; registers >= 32 && i + BLOCK <= call->n; i += BLOCK) {
        multiply_packed(range->scratch, rows, call->x + i * call->padded, BLOCK, call->padded,
                        out + i * stride, stride);
    }
    for (; i < call->n; i++) {
        multiply_packed(range->scratch, rows, call->x + i * call->padded, 1, call->padded,
                        out + i * stride, stride);
    }
}

/* Packs rows into scratch, BLOCK at a time, and multiplies them by all rows of x. */
LANES_INLINE void pack_and_multiply_rows(const row_range *range, int registers)
{
    const gumbel_tensor *weight = range->weight;
    for (int64_t row = range->first; row < range->last; row += BLOCK) {
        int64_t count = range->last - row < BLOCK ? range->last - row : BLOCK;
        for (int64_t r = 0; r < count; r++) {
            const void *elements = get_weight_row(weight, row + r);
            float *packed = range->scratch + r * range->call->padded;
            if (weight->dtype == GUMBEL_BFLOAT16) {
                pack_halves(elements, weight->cols, GUMBEL_BFLOAT16, packed);
            } else if (weight->dtype == GUMBEL_FLOAT16) {
                pack_halves(elements, weight->cols, GUMBEL_FLOAT16, packed);
            } else {
                pack_floats(elements, weight->cols, packed);
            }
        }
        if (count == BLOCK) {
            multiply_scratch_rows(range, BLOCK, registers, range->out + row);
        } else {
            /* The last rows of a matrix: scratch rows from `count` on are unused. */
            for (int64_t r = 0; r < count; r++) {
                row_range one = *range;
                one.scratch += r * range->call->padded;
                multiply_scratch_rows(&one, 1, registers, range->out + row + r);
            }
        }
    }
}

LANES_INLINE void multiply_row_range_body(const row_range *range, int registers)
{
    if (range->call->n == 1 && range->weight->dtype == GUMBEL_BFLOAT16) {
        multiply_rows_in_place(range, GUMBEL_BFLOAT16);
    } else if (range->call->n == 1 && range->weight->dtype == GUMBEL_FLOAT16) {
        multiply_rows_in_place(range, GUMBEL_FLOAT16);
    } else {
        pack_and_multiply_rows(range, registers);
    }
}

LANES_DISPATCH(multiply_row_range, row_range)

/* Multiplies tile `index`: a range of rows of every output. */
static void multiply_tile(void *argument, int32_t index)
{
    const linear_call *call = argument;
    for (int32_t o = 0; o < call->count; o++) {
        const gumbel_tensor *weight = call->outputs[o].weight;
        int64_t blocks = (weight->rows + BLOCK - 1) / BLOCK;
        int64_t first = blocks * index / call->tiles * BLOCK;
        int64_t last = blocks * (index + 1) / call->tiles * BLOCK;
        row_range range = {.call = call,
                           .weight = weight,
                           .first = first,
                           .last = last < weight->rows ? last : weight->rows,
                           .out = call->outputs[o].out,
                           .scratch = call->scratch + index * BLOCK * call->padded};
        multiply_row_range(&range);
    }
}

size_t linear_count_scratch(const pool *p, int64_t cols, int32_t n)
{
    size_t rows = (size_t)pool_threads(p) * TILES_PER_THREAD * BLOCK + (size_t)n;
    return rows * (size_t)pad_cols(cols);
}

void linear_multiply(pool *p, const linear_output *outputs, int32_t count, const float *x,
                     int32_t n, float *scratch)
{
    int64_t cols = outputs[0].weight->cols;
    int64_t padded = pad_cols(cols);
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
