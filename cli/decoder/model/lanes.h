/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen float32 lanes in the compilers' vector extension, and code compiled once for each
 * instruction set. A dot product is summed in the same order on every machine: lane l sums the
 * elements 16 i + l, and a binary tree adds the lanes.
 */
#ifndef DECODER_LANES_H
#define DECODER_LANES_H

#include <stdint.h>
#include <string.h>

#include "gumbel/gumbel.h"

#define LANES        16
#define LANES_INLINE static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t lanes_bits __attribute__((vector_size(4 * LANES)));

/* Functions take lanes by pointer: without AVX-512 the ABI cannot pass 64-byte vectors by value. */

/* Widen 16-bit floats, one in the low half of each lane (the high half is ignored), exactly. */
LANES_INLINE void lanes_widen(lanes *out, const lanes_bits *half, gumbel_dtype dtype)
{
    lanes_bits bits = *half;
    if (dtype == GUMBEL_BFLOAT16) {
        bits <<= 16;
        memcpy(out, &bits, sizeof bits);
        return;
    }
    /* float16: shifts exponent and fraction; the factor 2^112 corrects the exponent's bias, also of
     * subnormals. Infinity and NaN get an exponent of all ones. */
    lanes_bits magnitude = (bits & 0x7fff) << 13;
    lanes_bits special = (lanes_bits)((bits & 0x7c00) == 0x7c00) & 0x7f800000;
    lanes scaled;
    memcpy(&scaled, &magnitude, sizeof scaled);
    scaled *= 0x1p112f;
    memcpy(&magnitude, &scaled, sizeof scaled);
    bits = magnitude | special | (bits & 0x8000) << 16;
    memcpy(out, &bits, sizeof bits);
}

/* The sum of all lanes: 8 + 8, 4 + 4, 2 + 2, 1 + 1. */
LANES_INLINE float lanes_sum(const lanes *value)
{
    float part[LANES];
    memcpy(part, value, sizeof part);
    for (int width = LANES / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            part[i] += part[i + width];
        }
    }
    return part[0];
}

/* LANES_DISPATCH(): defines `void entry_point(const type *task)`, which calls
 * entry_point_body(task, n) as compiled for the machine's instruction set. The body is
 * LANES_INLINE; n, a constant, is the number of `lanes` that the registers hold. */
#if defined(__x86_64__)
#define LANES_DISPATCH(entry_point, type)                                                          \
    __attribute__((target("avx512f,avx2,fma"))) static void entry_point##_avx512(const type *task) \
    {                                                                                              \
        entry_point##_body(task, 32);                                                              \
    }                                                                                              \
    __attribute__((target("avx2,fma"))) static void entry_point##_avx2(const type *task)           \
    {                                                                                              \
        entry_point##_body(task, 8);                                                               \
    }                                                                                              \
    static void entry_point(const type *task)                                                      \
    {                                                                                              \
        if (__builtin_cpu_supports("avx512f")) {                                                   \
            entry_point##_avx512(task);                                                            \
        } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {              \
            entry_point##_avx2(task);                                                              \
        } else {                                                                                   \
            entry_point##_body(task, 8);                                                           \
        }                                                                                          \
    }
#else
#define LANES_DISPATCH(entry_point, type)                                                          \
    static void entry_point(const type *task) { entry_point##_body(task, 8); }
#endif

#endif /* DECODER_LANES_H */
