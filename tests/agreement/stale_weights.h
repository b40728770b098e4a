/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes of weights in place after their screen was built, which makes the screen stale.
 */
#ifndef TESTS_STALE_WEIGHTS_H
#define TESTS_STALE_WEIGHTS_H

#include "inputs.h"

#include <string.h>

typedef enum stale_kind {
    STALE_NAN,      /* all are NaN */
    STALE_INFINITE, /* all are +inf or -inf */
    STALE_ONE_NAN,  /* one row in eight has a NaN */
    STALE_POSITIVE, /* one row in eight has a +inf */
    STALE_NEGATIVE, /* one row in eight has a -inf */
    STALE_HUGE,     /* one row in eight has the largest finite value */
    STALE_LARGER,   /* all are multiplied by 1000 */
    STALE_SMALLER,  /* all are multiplied by 1/1000 */
    STALE_FLIPPED,  /* all signs change */
    STALE_ZERO,
    STALE_SHUFFLED, /* rows are permuted */
    STALE_SOME,     /* every third row changes sign */
    STALE_TRAINED,  /* each weight moves by up to 2% */
    STALE_BYTES,    /* random bytes */
    STALE_KINDS,
} stale_kind;

static const char *const stale_names[STALE_KINDS] = {
    "all NaN",   "all infinite", "some NaN",     "some +inf",   "some -inf",
    "some huge", "times 1000",   "times 0.001",  "flipped",     "zero",
    "shuffled",  "some flipped", "moved by 2 %", "random bytes"};

/* The bits of an element, in the low bits of a word. */
static inline uint32_t stale_bits(const void *data, gumbel_dtype dtype, int64_t i)
{
    return dtype == GUMBEL_FLOAT32 ? ((const uint32_t *)data)[i] : ((const uint16_t *)data)[i];
}

static inline void stale_set_bits(void *data, gumbel_dtype dtype, int64_t i, uint32_t bits)
{
    if (dtype == GUMBEL_FLOAT32)
        ((uint32_t *)data)[i] = bits;
    else
        ((uint16_t *)data)[i] = (uint16_t)bits;
}

static inline uint32_t stale_sign(gumbel_dtype dtype)
{
    return dtype == GUMBEL_FLOAT32 ? 0x80000000u : 0x8000u;
}

/* The bits of +inf. */
static inline uint32_t stale_infinity(gumbel_dtype dtype)
{
    return dtype == GUMBEL_FLOAT32 ? 0x7f800000u : dtype == GUMBEL_FLOAT16 ? 0x7c00u : 0x7f80u;
}

/* Multiplies a finite element. A product beyond the dtype's range saturates. */
static inline void stale_scale(void *data, gumbel_dtype dtype, int64_t i, float by)
{
    uint32_t infinity = stale_infinity(dtype), bits = stale_bits(data, dtype, i);
    if ((bits & infinity) == infinity)
        return;
    float value = dtype_load(data, dtype, i) * by;
    float most = dtype == GUMBEL_FLOAT16 ? 65504.0f : 0x1p126f;
    dtype_store(data, dtype, i, value > most ? most : value < -most ? -most : value);
}

static inline void scale_weights(const gumbel_tensor *weight, float by)
{
    int64_t stride = weight->stride ? weight->stride : weight->cols;
    for (int64_t row = 0; row < weight->rows; row++)
        for (int64_t i = 0; i < weight->cols; i++)
            stale_scale((void *)(uintptr_t)weight->data, weight->dtype, row * stride + i, by);
}

static inline void stale_element(void *data, gumbel_dtype dtype, stale_kind kind, int64_t i,
                                 uint64_t *random)
{
    uint32_t infinity = stale_infinity(dtype), sign = stale_sign(dtype);
    uint32_t bits = stale_bits(data, dtype, i);
    switch (kind) {
    case STALE_NAN:
        bits = infinity | 1u | (random_below(random, 2) ? sign : 0);
        break;
    case STALE_INFINITE:
        bits = infinity | (random_below(random, 2) ? sign : 0);
        break;
    case STALE_LARGER:
        stale_scale(data, dtype, i, 1000.0f);
        return;
    case STALE_SMALLER:
        stale_scale(data, dtype, i, 0.001f);
        return;
    case STALE_TRAINED:
        stale_scale(data, dtype, i, 1.0f + 0.01f * random_normal(random) / 1.75f);
        return;
    case STALE_FLIPPED:
    case STALE_SOME:
        bits ^= sign;
        break;
    case STALE_ZERO:
        bits = 0;
        break;
    case STALE_BYTES:
        bits = (uint32_t)random_bits(random);
        break;
    default:
        return;
    }
    stale_set_bits(data, dtype, i, bits);
}

/* Swap rows. */
static inline void stale_swap(char *a, char *b, size_t bytes)
{
    for (size_t i = 0; i < bytes && a != b; i++) {
        char kept = a[i];
        a[i] = b[i];
        b[i] = kept;
    }
}

/* Changes a tensor's elements, without the gaps between rows. */
static inline void spoil_rows(const gumbel_tensor *t, stale_kind kind, uint64_t *random)
{
    char *data = (char *)(uintptr_t)t->data;
    int64_t stride = t->stride ? t->stride : t->cols;
    size_t element = dtype_size(t->dtype);
    for (int64_t row = 0; row < t->rows; row++) {
        int64_t at = row * stride, place = at + random_below(random, (uint32_t)t->cols);
        uint32_t infinity = stale_infinity(t->dtype), sign = stale_sign(t->dtype);
        int chosen = random_below(random, 8) == 0;
        if (kind == STALE_SHUFFLED)
            stale_swap(data + (size_t)at * element,
                       data + (size_t)(random_below(random, (uint32_t)t->rows) * stride) * element,
                       (size_t)t->cols * element);
        else if (kind == STALE_ONE_NAN && chosen)
            stale_set_bits(data, t->dtype, place, infinity | 1u);
        else if (kind == STALE_POSITIVE && chosen)
            stale_set_bits(data, t->dtype, place, infinity);
        else if (kind == STALE_NEGATIVE && chosen)
            stale_set_bits(data, t->dtype, place, infinity | sign);
        else if (kind == STALE_HUGE && chosen)
            stale_set_bits(data, t->dtype, place, infinity - 1);
        else if (kind != STALE_SOME || row % 3 == 0)
            for (int64_t i = 0; i < t->cols; i++)
                stale_element(data, t->dtype, kind, at + i, random);
    }
}

static inline void spoil_weights(const gumbel_tensor *weight, stale_kind kind, uint64_t *random)
{
    spoil_rows(weight, kind, random);
}

#endif
