/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the rules of a row keep a token, by what lies above it: its pivot. Floats are enough for
 * the mass of a nucleus, but for a few tokens beside the cut.
 */
#ifndef GUMBEL_CUDA_PIVOT_CUH
#define GUMBEL_CUDA_PIVOT_CUH

#include "maths/truncation.h"
#include "cuda/common/draw.cuh"
#include "cuda/common/widen.cuh"

namespace
{

/* What a sum of masses is off at most, relative to it: terms by 2^-17 where they are 85 below the
 * largest, which has no mass, and 2^-20 where they count; sums by 2^-24 a term of a thread's. The
 * rest is room for rows of a hundred times 150,000 tokens. */
constexpr float kSumError = 0x1p-13f;

enum pivot_verdict { PIVOT_TRUNCATED, PIVOT_KEPT, PIVOT_UNSURE };

/* What lies above a pivot: how many tokens, and their mass and that of all, relative to the largest
 * value's. */
struct pivot_sums {
    uint32_t count;
    float mass, all;

    static __device__ __forceinline__ pivot_sums empty() { return {0, 0.0f, 0.0f}; }

    /* About exp(v - largest). */
    static __device__ __forceinline__ float mass_of(float v, float largest)
    {
        return ptx_exp2((v - largest) * LOG2E);
    }
    __device__ __forceinline__ void join_warp()
    {
        count = __reduce_add_sync(~0u, count);
#pragma unroll
        for (int half = 16; half > 0; half /= 2) {
            mass += __shfl_xor_sync(~0u, mass, half);
            all += __shfl_xor_sync(~0u, all, half);
        }
    }
};

/* What becomes of the pivot: it must be one of the first top_k, and within top_p of all. */
__device__ __forceinline__ pivot_verdict judge_pivot(const gumbel_rules &rules,
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
