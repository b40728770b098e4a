/* SPDX-License-Identifier: Apache-2.0
 *
 * The mass of a block of 64 tokens, by a converged warp: a lane has z of the tokens `lane` and
 * `lane` + 32 of the block, -inf if a token does not count. Every lane gets the results.
 */
#ifndef GUMBEL_CUDA_BLOCK_MASS_CUH
#define GUMBEL_CUDA_BLOCK_MASS_CUH

#include "maths/summary.h"
#include "cuda/common/ptx.cuh"

/* The largest z of a block; -inf if no token counts. */
static __device__ __forceinline__ float find_block_largest(float low, float high)
{
    float largest = fmaxf(low, high);
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, half));
    return largest;
}

/* The sum of exp(z - largest) in the order of eq. 8; `largest` is not -inf. */
static __device__ __forceinline__ float sum_block(float low, float high, float largest)
{
    low = gumbel_exp(low - largest);
    high = gumbel_exp(high - largest);
    low += __shfl_xor_sync(~0u, low, 16);
    high += __shfl_xor_sync(~0u, high, 16);
    float sum = low + high;
#pragma unroll
    for (int half = 8; half > 0; half /= 2)
        sum += __shfl_xor_sync(~0u, sum, half);
    return sum;
}

#endif
