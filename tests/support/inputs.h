/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems to draw from: tensors and parameters made from a seed, the same bits on every machine
 * (no libm). Columns between D and the stride hold NaN, so that a read past a row is detected.
 *
 * This layer uses no test framework. A failure of the environment (out of memory, a device that
 * cannot be opened) ends the program with a message.
 */
#ifndef TESTS_INPUTS_H
#define TESTS_INPUTS_H

#include <gumbel/gumbel.h>

/* The problem to generate. A zero in any field except the sizes selects the default. */
typedef struct problem_plan {
    int64_t batch, vocab, hidden_size; /* B, V, D */
    int32_t samples;                   /* S; 0: 1 */
    gumbel_dtype weight_dtype;         /* 0: bfloat16 */
    gumbel_dtype hidden_dtype;         /* 0: float32 */
    gumbel_dtype bias_dtype;           /* 0: no bias */
    int64_t weight_gap, hidden_gap;    /* stride - D */
    int64_t first_token, vocab_size;
    float scale, soft_cap;
    float
        temperature; /* of row 0; row b has (1 + b / 8) times it; < 0: every third row is greedy */
    float spread;    /* standard deviation of the logits; 0: 3 */
    uint32_t domain;
    uint32_t first_sample; /* of row 0; if it is not 0, the other rows have different ones */
    uint64_t seed;
} problem_plan;

typedef struct problem {
    problem_plan plan;
    gumbel_head head;
    gumbel_sampling sampling; /* one temperature, seed, position and first sample a row */
    void *weight, *hidden, *bias;
    float *temperature;
    uint64_t *seed;
    uint64_t *position;
    uint32_t *first_sample;
} problem;

gumbel_tensor tensor_of(const void *data, gumbel_dtype dtype, int64_t rows, int64_t cols,
                        int64_t stride);

/* Generates a problem; free it with problem_free(). */
problem *problem_make(const problem_plan *plan);
void problem_free(problem *generated);

/* Rows [first, first + count) of a problem, as views without a copy. */
void problem_rows(const problem *whole, int64_t first, int64_t count, gumbel_head *head,
                  gumbel_sampling *sampling);

/* The shard of a head with its tokens [first, first + count), counted from row 0. */
gumbel_head problem_shard(const gumbel_head *head, int64_t first, int64_t count);

/* One line that describes the plan, in static storage. */
const char *problem_describe(const problem_plan *plan);

/* ------------------------------------------------- row parameters, by gumbel.h ----- */

/* The slot of row b: the index of its parameters, mask and history. */
static inline int64_t slot_of_row(const gumbel_sampling *s, int64_t b)
{
    return s->slots.of_row ? s->slots.of_row[b] : b;
}

/* The offset of row b's parameter of `width` elements. */
static inline int64_t place_of_row(const gumbel_sampling *s, int64_t stride, int64_t width,
                                   int64_t b)
{
    return stride == GUMBEL_SAME ? 0 : slot_of_row(s, b) * (stride ? stride : width);
}

static inline float row_f32(const gumbel_row_f32 *rows, const gumbel_sampling *s, int64_t b,
                            float otherwise)
{
    return rows->data ? rows->data[place_of_row(s, rows->stride, 1, b)] : otherwise;
}

static inline int32_t row_i32(const gumbel_row_i32 *rows, const gumbel_sampling *s, int64_t b,
                              int32_t otherwise)
{
    return rows->data ? rows->data[place_of_row(s, rows->stride, 1, b)] : otherwise;
}

static inline uint32_t row_u32(const gumbel_row_u32 *rows, const gumbel_sampling *s, int64_t b,
                               uint32_t otherwise)
{
    return rows->data ? rows->data[place_of_row(s, rows->stride, 1, b)] : otherwise;
}

static inline uint64_t row_u64(const gumbel_row_u64 *rows, const gumbel_sampling *s, int64_t b,
                               uint64_t otherwise)
{
    return rows->data ? rows->data[place_of_row(s, rows->stride, 1, b)] : otherwise;
}

/* ------------------------------------------------------------------------- random input ---- */

/* The next 64 bits of a SplitMix64 stream. */
uint64_t random_bits(uint64_t *state);

/* An integer in [0, below), below < 2^32. */
uint32_t random_below(uint64_t *state, uint32_t below);

/* Mean 0, variance 1, within +-3.5: the sum of four uniforms, in exact arithmetic. */
float random_normal(uint64_t *state);

/* --------------------------------------------------------------------------------- dtypes ---- */

size_t dtype_size(gumbel_dtype dtype);
const char *dtype_name(gumbel_dtype dtype);

/* Store a finite value, rounded to nearest even, at `index` (in elements). */
void dtype_store(void *data, gumbel_dtype dtype, int64_t index, float value);

/* The element at `index`, widened; 16-bit ones must be finite. */
float dtype_load(const void *data, gumbel_dtype dtype, int64_t index);

/* Store a NaN, or an infinity of this sign. */
void dtype_store_nan(void *data, gumbel_dtype dtype, int64_t index);
void dtype_store_infinite(void *data, gumbel_dtype dtype, int64_t index, int sign);

/* calloc() that ends the program if memory is exhausted. */
void *make_zeroed(size_t count, size_t size);

/* End the program with a message and status 2. */
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
