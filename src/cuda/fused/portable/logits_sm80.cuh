/* SPDX-License-Identifier: Apache-2.0
 *
 * A warp's accumulators (layout: product_sm80.cuh) as the logits of the rung `tensor`: they are
 * stored, or turned to the y of eq. 2.
 */
#ifndef GUMBEL_CUDA_LOGITS_SM80_CUH
#define GUMBEL_CUDA_LOGITS_SM80_CUH

#include "cuda/fused/portable/product_sm80.cuh"
#include "cuda/fused/portable/cta_state_sm80.cuh"
#include "cuda/common/widen.cuh"

namespace
{

/* Uses the sums so that the compiler keeps the product; never writes. */
template <int n>
__device__ __forceinline__ void sink_sums(const float (&sum)[n / 8][8], uint32_t *never)
{
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < n; i++)
        all += sum[i / 8][i % 8];
    if (all == 0x1.23456p+99f)
        *never = 0;
}

/* Moves every group of columns `by` groups down, the lowest ones to the top: registers cannot be
 * indexed, so a rolled loop over groups always uses the lowest. */
template <int by, int groups> __device__ __forceinline__ void rotate_groups(float (&y)[groups][8])
{
    if constexpr (by < groups) {
        float first[by][8];
#pragma unroll
        for (int i = 0; i < 8 * by; i++)
            first[i / 8][i % 8] = y[i / 8][i % 8];
#pragma unroll
        for (int i = 0; i < 8 * (groups - by); i++)
            y[i / 8][i % 8] = y[i / 8 + by][i % 8];
#pragma unroll
        for (int i = 0; i < 8 * by; i++)
            y[groups - by + i / 8][i % 8] = first[i / 8][i % 8];
    }
}

/* A warp tile: its place, state and logits. The y of a token that does not count is -inf. */
template <int n> struct sm80_logits {
    const cuda_params &p;
    const cta_state t;   /* of the warp's tokens and columns */
    const int first_row; /* row of its first column */
    const int columns;   /* that have a row; <= 0: none */
    const int samples;
    const int warp; /* index of the warp tile in the tile */
    const int lane;
    uint32_t token; /* the lane's first in the warp tile, a multiple of 4 */

    /* Stores the logits of tokens from `first` to `end`. */
    __device__ __forceinline__ void store_logits(const float (&sum)[n / 8][8], int64_t first,
                                                 int64_t end) const
    {
        const gumbel_problem &q = p.problem;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t id = (int64_t)token + i, at = id - q.first_token;
            if (id < first || id >= end)
                continue;
            float bias = q.bias.data ? widen_element(q.bias.data, q.bias.dtype, at) : -0.0f;
#pragma unroll
            for (int j = 0; j < n / 8; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    int column = 8 * j + 2 * (lane & 3) + c;
                    if (column < columns)
                        p.logits_out[(first_row + column) * p.logits_out_stride + at] =
                            sum[j][2 * i + c] + bias;
                }
        }
    }

    /* Turns sums to y, in place; tokens from `first` to `end` count. */
    __device__ __forceinline__ void prepare_logits(float (&sum)[n / 8][8], int64_t first,
                                                   int64_t end) const
    {
        const gumbel_problem &q = p.problem;
        uint32_t warp_tile = token - 4 * (lane / 4);
        bool rare =
            q.bias.data || q.soft_cap != 0.0f || warp_tile < first || warp_tile + kWarpTile > end;
        if (rare)
            prepare_rare(sum, first, end);
        else if (q.scale != 1.0f)
#pragma unroll
            for (int k = 0; k < n; k++)
                sum[k / 8][k % 8] *= q.scale;
    }

    /* Applies bias and soft-cap and sets tokens that do not count to -inf; a rolled loop, one group
     * a turn. */
    __device__ __forceinline__ void prepare_rare(float (&sum)[n / 8][8], int64_t first,
                                                 int64_t end) const
    {
        const gumbel_problem &q = p.problem;
        float bias[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t id = (int64_t)token + i;
            bias[i] = id >= first && id < end && q.bias.data
                          ? widen_element(q.bias.data, q.bias.dtype, id - q.first_token)
                          : -0.0f;
        }
#pragma unroll 1
        for (int j = 0; j < n / 8; j++) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                int64_t id = (int64_t)token + k / 2;
                float l = sum[0][k] + bias[k / 2];
                float y = q.soft_cap != 0.0f ? draw_soft_cap_logit(p, l) : l * q.scale;
                sum[0][k] = id >= first && id < end ? y : -INFINITY;
            }
            rotate_groups<1>(sum);
        }
    }
};

} // namespace

#endif
