/* SPDX-License-Identifier: Apache-2.0
 *
 * Exact widening of one element to float32.
 */
#ifndef GUMBEL_CUDA_WIDEN_CUH
#define GUMBEL_CUDA_WIDEN_CUH

#include "cuda/common/ptx.cuh"
#include "gumbel/gumbel.h"

static __device__ __forceinline__ float widen_bf16(uint32_t bits)
{
    return __uint_as_float(bits << 16);
}

static __device__ __forceinline__ float widen_f16(uint32_t bits)
{
    return ptx_widen_f16((uint16_t)bits);
}

static __device__ __forceinline__ float widen_element(const void *data, gumbel_dtype dtype,
                                                      int64_t i)
{
    if (dtype == GUMBEL_FLOAT32)
        return ((const float *)data)[i];
    uint32_t bits = ((const uint16_t *)data)[i];
    return dtype == GUMBEL_BFLOAT16 ? widen_bf16(bits) : widen_f16(bits);
}

#endif
