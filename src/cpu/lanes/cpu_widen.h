/* SPDX-License-Identifier: Apache-2.0
 *
 * Exact widening of single elements to float32, and the order in which a chunk of hidden states is
 * packed.
 */
#ifndef GUMBEL_CPU_WIDEN_H
#define GUMBEL_CPU_WIDEN_H

#include "cpu/cpu_kernels.h"

/* IEEE binary16 to float32; subnormals are normalised, NaN payloads kept and made quiet. */
static inline float cpu_half_to_float(uint16_t half)
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
    return dtype == GUMBEL_BFLOAT16 ? gumbel_float_of((uint32_t)half << 16)
                                    : cpu_half_to_float(half);
}

/* Where element i of a chunk of 32 stands in the packed chunk; lane place % 16 sums it. Against
 * bfloat16 weights the even elements come first, then the odd ones: a 32-bit word of weights holds
 * one of each, and a shift and a mask take them apart where a widening load needs a shuffle. */
static inline int cpu_pack_place(gumbel_dtype weight, int i)
{
    return weight == GUMBEL_BFLOAT16 ? i / 2 + (i % 2) * CPU_LANES : i;
}

#endif
