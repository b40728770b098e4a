/* SPDX-License-Identifier: Apache-2.0
 *
 * The product of one hidden state and the weights of one token, by the service warps: its rounding
 * error is far smaller than the interval of a screen.
 */
#ifndef GUMBEL_CUDA_SCREEN_SHARPEN_CUH
#define GUMBEL_CUDA_SCREEN_SHARPEN_CUH

#include "cuda/common/widen.cuh"
#include "cuda/fused/screen/screen_case.cuh"

namespace
{

/* Vectors of eight columns that a thread loads at once. */
constexpr int kSharpAhead = 6;

__device__ __forceinline__ const uint16_t *weights_of(const cuda_screen_params &s, uint32_t token)
{
    const gumbel_problem &q = s.call.problem;
    return (const uint16_t *)q.weight.data +
           (int64_t)(token - (uint32_t)q.first_token) * q.weight.stride;
}

/* Adds two products, and their absolute values. */
__device__ __forceinline__ void add_pair(uint32_t a, uint32_t b, bool half, float2 &sums)
{
#pragma unroll
    for (int shift = 0; shift < 32; shift += 16) {
        const uint32_t x_bits = a >> shift & 0xffff, y_bits = b >> shift & 0xffff;
        const float x = half ? widen_f16(x_bits) : widen_bf16(x_bits);
        const float y = half ? widen_f16(y_bits) : widen_bf16(y_bits);
        sums.x = fmaf(x, y, sums.x);
        sums.y = fmaf(fabsf(x), fabsf(y), sums.y);
    }
}

/* The sums over a warp's part of the products of draw i's hidden state and a token's weights, and
 * of their absolute values; by all service threads. */
template <class call>
__device__ __forceinline__ float2 multiply_by_warp(const call &s, int i, uint32_t token, int thread)
{
    const gumbel_problem &q = s.call.problem;
    const uint4 *w = (const uint4 *)weights_of(s, token);
    const uint4 *h = (const uint4 *)s.hidden_of(i);
    const bool half = q.weight.dtype == GUMBEL_FLOAT16;
    const int vectors = (int)(q.hidden_size / 8);
    float2 sums = {0.0f, 0.0f};
#pragma unroll 1
    for (int from = thread; from < vectors; from += kSharpAhead * SM90_SERVE_THREADS) {
        uint4 a[kSharpAhead], b[kSharpAhead];
#pragma unroll
        for (int k = 0; k < kSharpAhead; k++) {
            const int v = from + k * SM90_SERVE_THREADS;
            a[k] = b[k] = {0, 0, 0, 0};
            if (v < vectors) {
                a[k] = __ldg(w + v);
                b[k] = __ldg(h + v);
            }
        }
#pragma unroll
        for (int k = 0; k < kSharpAhead; k++) {
            add_pair(a[k].x, b[k].x, half, sums);
            add_pair(a[k].y, b[k].y, half, sums);
            add_pair(a[k].z, b[k].z, half, sums);
            add_pair(a[k].w, b[k].w, half, sums);
        }
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        sums.x += __shfl_xor_sync(~0u, sums.x, lanes);
        sums.y += __shfl_xor_sync(~0u, sums.y, lanes);
    }
    return sums;
}

} // namespace

#endif
