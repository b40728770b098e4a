/* SPDX-License-Identifier: Apache-2.0
 *
 * Noise by the hardware's logarithm: what GUMBEL_MATH_FAST permits.
 *
 * lg2.approx is off by 2^-22 at most, absolutely, between 1/2 and 2, where a small E = -log1p(-u)
 * would drown in that; so below 1/16 a series makes E, off by 1 / 5 * 2^-16 = 3e-6 of it at most.
 * The words that decide how often rare tokens win lie there. Words below GUMBEL_TAIL_WORDS, one in
 * 2^24, are left to the exact path.
 */
#ifndef GUMBEL_CUDA_FAST_NOISE_CUH
#define GUMBEL_CUDA_FAST_NOISE_CUH

#include "maths/noise.h"
#include "cuda/common/ptx.cuh"

/* gumbel_of_word(), within 1e-5. */
static __device__ __forceinline__ float fast_noise_of_word(uint32_t r)
{
    const float ln2 = 0.69314718055994531f;
    bool high = r >= 0x80000000u;
    float v = fmaf((float)(int32_t)(high ? ~r : r), 0x1p-32f, 0x1p-33f);
    float series = v * fmaf(v, fmaf(v, fmaf(v, 0.25f, 1.0f / 3.0f), 0.5f), 1.0f);
    float e = -ln2 * ptx_log2(high ? v : 1.0f - v);
    return -ln2 * ptx_log2(!high && v < 0.0625f ? series : e);
}

#endif
