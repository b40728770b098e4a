/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of program_rules.h by the lanes of a warp.
 */
#ifndef GUMBEL_CUDA_FACTS_CUH
#define GUMBEL_CUDA_FACTS_CUH

#include "cuda/common/ptx.cuh"
#include "maths/program_rules.h"

namespace
{

/* The sum over a warp of 128-bit integers, modulo 2^128, for all lanes; of digits whose sums over
 * 32 lanes fit in 32 bits. */
__device__ __forceinline__ gumbel_wide sum_wide_of_warp(gumbel_wide own)
{
    constexpr int digit_bits = 27;
    gumbel_wide sum = 0;
#pragma unroll
    for (int shift = 0; shift < 128; shift += digit_bits) {
        const uint32_t digit = (uint32_t)(own >> shift) & ((1u << digit_bits) - 1);
        sum += (gumbel_wide)__reduce_add_sync(~0u, digit) << shift;
    }
    return sum;
}

/* Adds a value to the sums that `required` names. */
__device__ __forceinline__ void add_to_facts(gumbel_facts &own, int required, float v,
                                             float largest)
{
    const float e = required & ~GUMBEL_FACT_SPREAD ? gumbel_exp(v - largest) : 0.0f;
    const float squared = required & GUMBEL_FACT_SQUARED ? gumbel_exp(2.0f * (v - largest)) : 0.0f;
    gumbel_facts_add(&own, required, v, largest, e, squared);
}

} // namespace

#endif
