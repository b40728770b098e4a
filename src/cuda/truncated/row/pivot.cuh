/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides whether the rules of a row keep one token, the pivot, from the tokens above it. Sums of
 * floats decide except when the pivot is within rounding error of the end of the nucleus.
 */
#ifndef GUMBEL_CUDA_PIVOT_CUH
#define GUMBEL_CUDA_PIVOT_CUH

#include "maths/truncation.h"
#include "cuda/common/draw.cuh"
#include "cuda/common/widen.cuh"

namespace
{

/* Relative error of a sum of masses. A term is off by 2^-20, or by 2^-17 if it is 85 below the
 * largest value and has no mass; a thread's sum is off by 2^-24 a term. The remaining margin covers
 * rows of a hundred times 150,000 tokens. */
constexpr float kSumError = 0x1p-13f;

/* Maximum number of winners tried. A fifth is required with a probability of (1 - top_p)^4 / 24. */
constexpr int kPivots = 4;

enum pivot_verdict { PIVOT_TRUNCATED, PIVOT_KEPT, PIVOT_UNSURE };

/* The sum over a warp, for all lanes. */
__device__ __forceinline__ float sum_floats_of_warp(float own)
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        own += __shfl_xor_sync(~0u, own, half);
    return own;
}

/* Tokens above a pivot: their number, and their mass and the mass of all tokens, relative to the
 * largest token's. */
struct pivot_sums {
    uint32_t count;
    float mass, all;

    static __device__ __forceinline__ pivot_sums empty() { return {0, 0.0f, 0.0f}; }

    /* Approximates exp(v - largest). */
    static __device__ __forceinline__ float mass_of(float v, float largest)
    {
        return ptx_exp2((v - largest) * LOG2E);
    }
    __device__ __forceinline__ void join_warp()
    {
        count = __reduce_add_sync(~0u, count);
        mass = sum_floats_of_warp(mass);
        all = sum_floats_of_warp(all);
    }
};

/* Keeps the pivot if it is among the first top_k and the mass above it is less than top_p of all.
 */
__device__ __forceinline__ pivot_verdict determine_pivot_verdict(const gumbel_rules &rules,
                                                                 const pivot_sums &above)
{
    if (rules.top_k > 0 && above.count >= rules.top_k)
        return PIVOT_TRUNCATED;
    if (!(rules.top_p < 1.0f))
        return PIVOT_KEPT;
    const float needed = rules.top_p * above.all;
    return above.mass < needed * (1.0f - kSumError)    ? PIVOT_KEPT
           : above.mass >= needed * (1.0f + kSumError) ? PIVOT_TRUNCATED
                                                       : PIVOT_UNSURE;
}

} // namespace

#endif
