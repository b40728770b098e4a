/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounds float32 to float16 and bfloat16: to the nearest value, ties to the even one. A value that
 * rounds beyond the largest finite one becomes an infinity of its sign, as IEEE 754 requires:
 * 65520 and more in float16. Subnormals are kept. A NaN stays a NaN.
 */
#ifndef GUMBEL_MATHS_ROUNDING_H
#define GUMBEL_MATHS_ROUNDING_H

#include "maths/elementary.h"
#include "gumbel/gumbel.h"

GUMBEL_INLINE uint16_t gumbel_round_to_float16(float x)
{
    const uint32_t bits = gumbel_bits_of(x), size = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (size >= 0x477ff000u) /* 65520, half way from the largest finite value to 2^16 */
        return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) /* below 2^-14: a sum near 1/2 has the spacing of subnormals, 2^-24 */
        return (uint16_t)(sign | (gumbel_bits_of(gumbel_float_of(size) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | ((size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13));
}

GUMBEL_INLINE uint16_t gumbel_round_to_bfloat16(float x)
{
    const uint32_t bits = gumbel_bits_of(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16 & 0x8000u) | 0x7fc0u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* row[i] = x, rounded to the row's dtype. */
GUMBEL_INLINE void gumbel_store_element(void *row, gumbel_dtype dtype, int64_t i, float x)
{
    if (dtype == GUMBEL_FLOAT32)
        ((float *)row)[i] = x;
    else
        ((uint16_t *)row)[i] =
            dtype == GUMBEL_FLOAT16 ? gumbel_round_to_float16(x) : gumbel_round_to_bfloat16(x);
}

#endif
