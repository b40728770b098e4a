/* SPDX-License-Identifier: Apache-2.0
 *
 * A warp's step of logits: the elements of each lane, and their mass (eq. 8).
 */
#ifndef GUMBEL_CUDA_LOGITS_STEP_CUH
#define GUMBEL_CUDA_LOGITS_STEP_CUH

#include "cuda/policy/cuda_policy.h"
#include "cuda/common/draw.cuh"
#include "cuda/common/widen.cuh"

namespace
{

constexpr int kStep = CUDA_LOGITS_STEP, kQuads = kStep / 128;
constexpr int kStride = GUMBEL_BLOCK / 4; /* tokens from one of a lane's quads to the next */
static_assert(kQuads * kStride == GUMBEL_BLOCK, "four lanes hold a block");

struct four {
    float v[4];
};

/* Four elements as stored in memory. */
template <gumbel_dtype dtype> struct quad {
    using element = uint16_t;
    uint2 x;

    static __device__ __forceinline__ element minus_infinity()
    {
        return dtype == GUMBEL_BFLOAT16 ? 0xff80 : 0xfc00;
    }

    static __device__ __forceinline__ quad from_elements(const element (&e)[4])
    {
        return {{e[0] | (uint32_t)e[1] << 16, e[2] | (uint32_t)e[3] << 16}};
    }

    /* Streaming load: a row is read once, and other data stay cached. */
    static __device__ __forceinline__ quad read(const element *from)
    {
        return {__ldcs((const uint2 *)from)};
    }

    __device__ __forceinline__ four to_floats() const
    {
        if (dtype == GUMBEL_BFLOAT16)
            return {widen_bf16(x.x & 0xffffu), widen_bf16(x.x >> 16), widen_bf16(x.y & 0xffffu),
                    widen_bf16(x.y >> 16)};
        return {widen_f16(x.x & 0xffffu), widen_f16(x.x >> 16), widen_f16(x.y & 0xffffu),
                widen_f16(x.y >> 16)};
    }
};

template <> struct quad<GUMBEL_FLOAT32> {
    using element = float;
    float4 x;

    static __device__ __forceinline__ element minus_infinity() { return -INFINITY; }

    static __device__ __forceinline__ quad from_elements(const element (&e)[4])
    {
        return {{e[0], e[1], e[2], e[3]}};
    }

    static __device__ __forceinline__ quad read(const element *from)
    {
        return {__ldcs((const float4 *)from)};
    }

    __device__ __forceinline__ four to_floats() const { return {x.x, x.y, x.z, x.w}; }
};

__device__ __forceinline__ float largest_of(const four &x)
{
    return ptx_max_nan(ptx_max_nan(x.v[0], x.v[1]), ptx_max_nan(x.v[2], x.v[3]));
}

__device__ __forceinline__ float largest_of_step(const four (&x)[kQuads])
{
    float largest = largest_of(x[0]);
#pragma unroll
    for (int k = 1; k < kQuads; k++)
        largest = ptx_max_nan(largest, largest_of(x[k]));
    return largest;
}

/* ---------------------------------------------------------------------------------- mass ---- */

/* The largest z and the mass of a block of 64. */
struct block_measure {
    float largest, sum;
};

/* The maximum and mass of the block that four lanes hold, for all four. Each lane adds four of the
 * 16 partial sums of eq. 8, which are then combined without adding any twice. */
__device__ __forceinline__ block_measure measure_block(const four (&z)[kQuads], int lane)
{
    float largest = z[0].v[0];
#pragma unroll
    for (int i = 1; i < 4 * kQuads; i++)
        largest = fmaxf(largest, z[i / 4].v[i % 4]);
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    float s[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = (gumbel_exp(z[0].v[i] - largest) + gumbel_exp(z[1].v[i] - largest)) +
               (gumbel_exp(z[2].v[i] - largest) + gumbel_exp(z[3].v[i] - largest));
    bool upper = lane & 2, odd = lane & 1;
    float a = (upper ? s[2] : s[0]) + __shfl_xor_sync(~0u, upper ? s[0] : s[2], 2);
    float b = (upper ? s[3] : s[1]) + __shfl_xor_sync(~0u, upper ? s[1] : s[3], 2);
    float sum = (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    sum += __shfl_xor_sync(~0u, sum, 1);
    return {largest, sum};
}

/* Sums the masses of a warp's steps. A lane holds the block of every fourth step, so that all lanes
 * add at once. */
struct mass_accumulator {
    gumbel_summary *thread_sum; /* of this thread */
    int lane;
    int steps = 0;
    block_measure kept = {-INFINITY, 0.0f};

    __device__ __forceinline__ void add(const four (&z)[kQuads])
    {
        block_measure found = measure_block(z, lane);
        if (steps % 4 == lane % 4)
            kept = found;
        if (steps++ % 4 == 3)
            flush();
    }

    __device__ __forceinline__ void flush()
    {
        thread_sum->max_z = fmaxf(thread_sum->max_z, kept.largest);
        gumbel_mass_add_block(thread_sum, kept.largest, kept.sum);
        kept.largest = -INFINITY;
    }
};

} // namespace

#endif
