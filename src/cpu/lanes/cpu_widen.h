/* SPDX-License-Identifier: Apache-2.0
 *
 * Exact widening of single elements to float32, and the order of elements in a packed k-tile of
 * hidden states.
 */
#ifndef GUMBEL_CPU_WIDEN_H
#define GUMBEL_CPU_WIDEN_H

#include "cpu/cpu_kernels.h"

/* IEEE binary16 to float32. Subnormals are normalised; NaN payloads are kept and made quiet. */
static inline float cpu_widen_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = (uint32_t)(half & 0x7fff) << 13;
    if (half & 0x7c00) {
        int special = (half & 0x7c00) == 0x7c00;
        uint32_t quiet = special && (half & 0x03ff) ? 0x00400000u : 0;
        return gumbel_float_of(sign | quiet | (rest + ((special ? 255u - 31u : 127u - 15u) << 23)));
    }
    return gumbel_float_of(sign | gumbel_bits_of((float)(half & 0x03ff) * 0x1p-24f));
}

static inline float cpu_widen_element(const void *data, gumbel_dtype dtype, int64_t i)
{
    uint16_t half;
    float x;
    if (dtype == GUMBEL_FLOAT32) {
        memcpy(&x, (const char *)data + 4 * i, sizeof x);
        return x;
    }
    memcpy(&half, (const char *)data + 2 * i, sizeof half);
    return dtype == GUMBEL_BFLOAT16 ? gumbel_float_of((uint32_t)half << 16) : cpu_widen_half(half);
}

/* Index of element i of a k-tile of 32 in the packed k-tile; lane index % 16 sums it. For bfloat16
 * weights the even elements come first, then the odd ones: a 32-bit word of weights holds one of
 * each, and a shift and a mask separate them where a widening load would require a shuffle. */
static inline int cpu_find_packed_place(gumbel_dtype weight, int i)
{
    return weight == GUMBEL_BFLOAT16 ? i / 2 + (i % 2) * CPU_LANES : i;
}

#endif
