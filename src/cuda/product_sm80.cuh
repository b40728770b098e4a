/* SPDX-License-Identifier: Apache-2.0
 *
 * The portable rung's stages: how weights and hidden states come into shared memory, and how a warp
 * multiplies them.
 *
 * A stage holds 128 bytes of each of 128 weight rows and of each of n hidden states, a row after
 * the other. The eight 16-byte pieces of a row are swizzled, piece c to place c ^ (row / 4 % 8) for
 * weights, c ^ (row % 8) for hidden states, so that the eight addresses that are read together lie
 * in different banks: a lane's four tokens are neighbours, hence a quarter warp reads every fourth
 * row.
 */
#ifndef GUMBEL_CUDA_PRODUCT_SM80_CUH
#define GUMBEL_CUDA_PRODUCT_SM80_CUH

#include "cuda/cuda_params.h"
#include "cuda/cuda_policy.h"
#include "cuda/mma_sm80.cuh"

namespace
{

constexpr int kTile = CUDA_SM80_TILE, kThreads = CUDA_SM80_THREADS, kWarps = kThreads / 32;
constexpr int kSlab = CUDA_SM80_SLAB; /* tokens of a tile that a warp takes */
constexpr int kDepth = 128;           /* bytes of a row in a stage */
constexpr int kPieces = kDepth / 16;
constexpr int kBeside = kThreads / kPieces; /* rows that are copied side by side */
static_assert(kSlab * kWarps == kTile, "a tile is a slab of each warp");
static_assert(kSlab == 32, "a lane takes four of the tokens of two 16-row products");
static_assert(kBeside == 16, "the swizzle of a thread's rows is written for this");

template <int n> struct layout {
    static constexpr int weight_bytes = kTile * kDepth;
    static constexpr int stage_bytes = weight_bytes + n * kDepth;
    static constexpr int stages = CUDA_SM80_STAGES(n);
};

/* A thread's share of the copies: one piece of every 16th row, tile after tile. */
template <int n> struct loader {
    const unsigned char *weight; /* its first row of the tile, at the present depth */
    const unsigned char *hidden;
    int64_t weight_step, hidden_step; /* bytes to its next row */
    int64_t first, end;               /* tokens of this CTA that count */
    int64_t token;                    /* of its first row of the tile */
    int bytes; /* that its piece has at depth 0 and from there on: it starts at most there */
    int row_bytes, left, columns;
    uint32_t weight_to, hidden_to; /* shared addresses in the next stage */
    uint32_t last_to;              /* where weight_to is in the last stage of the ring */
    uint32_t counts;               /* bit i: its row i of the tile counts */

    __device__ __forceinline__ loader(const gumbel_problem &q, int size, uint32_t ring,
                                      int64_t begin, int64_t last)
    {
        int piece = threadIdx.x % kPieces, row = threadIdx.x / kPieces;
        int64_t weight_row = q.weight.stride * size, hidden_row = q.hidden.stride * size;
        weight_step = kBeside * weight_row;
        hidden_step = kBeside * hidden_row;
        first = q.first_token > begin ? q.first_token : begin;
        end = last;
        token = begin + row;
        weight = (const unsigned char *)q.weight.data + (token - q.first_token) * weight_row +
                 16 * piece;
        hidden = (const unsigned char *)q.hidden.data + row * hidden_row + 16 * piece;
        row_bytes = (int)(q.hidden_size * size);
        bytes = left = row_bytes - 16 * piece;
        columns = (int)q.batch - row;
        weight_to = ring + row * kDepth + 16 * (piece ^ row / 4);
        hidden_to = ring + layout<n>::weight_bytes + row * kDepth + 16 * (piece ^ row % 8);
        last_to = weight_to + (layout<n>::stages - 1) * layout<n>::stage_bytes;
        count();
    }

    __device__ __forceinline__ void count()
    {
        counts = 0;
#pragma unroll
        for (int i = 0; i < kTile / kBeside; i++)
            counts |= (uint32_t)(token + kBeside * i >= first && token + kBeside * i < end) << i;
    }

    /* Start the copies of a stage, and go on to the next one. */
    __device__ __forceinline__ void copy()
    {
        uint32_t size = left < 0 ? 0 : left < 16 ? left : 16;
#pragma unroll
        for (int i = 0; i < kTile / kBeside; i++)
            sm80_copy((weight_to ^ (i & 1) << 6) + i * kBeside * kDepth, weight + i * weight_step,
                      counts >> i & 1 ? size : 0);
#pragma unroll
        for (int i = 0; i < (n + kBeside - 1) / kBeside; i++)
            if (n % kBeside == 0 || threadIdx.x < n * kPieces)
                sm80_copy(hidden_to + i * kBeside * kDepth, hidden + i * hidden_step,
                          kBeside * i < columns ? size : 0);
        weight += kDepth;
        hidden += kDepth;
        left -= kDepth;
        uint32_t on = weight_to == last_to ? -(layout<n>::stages - 1) * layout<n>::stage_bytes
                                           : layout<n>::stage_bytes;
        weight_to += on;
        hidden_to += on;
        if (left <= bytes - row_bytes)
            next_tile();
    }

    __device__ __forceinline__ void next_tile()
    {
        int back = bytes - left;
        weight += kTile / kBeside * weight_step - back;
        hidden -= back;
        left = bytes;
        token += kTile;
        count();
    }

    /* The copies of the next stage, if there is one, as one group. */
    __device__ __forceinline__ void copy_next()
    {
        if (token - threadIdx.x / kPieces < end)
            copy();
        sm80_copy_commit();
    }
};

/* The product of a warp's slab with one stage. sum[j][2 i + c] is the lane's token i (of the four
 * from 4 * (lane / 4) on) in column 8 j + 2 * (lane % 4) + c. */
template <bool half> struct product_16bit {
    static constexpr int size = 2;

    /* MMA row 8 h + g of block f is token 4 g + 2 f + h. */
    template <int n>
    static __device__ __forceinline__ void add(float (&sum)[n / 8][8], uint32_t stage)
    {
        int lane = threadIdx.x % 32, row = lane % 8;
        uint32_t slab = stage + threadIdx.x / 32 * kSlab * kDepth;
        uint32_t weights = slab + (4 * row + (lane / 8 & 1)) * kDepth;
        uint32_t hidden = stage + layout<n>::weight_bytes + row * kDepth;
#pragma unroll
        for (int pair = 0; pair < kPieces / 4; pair++) {
            uint32_t a[2][2][4]; /* [step][block] */
#pragma unroll
            for (int step = 0; step < 2; step++)
#pragma unroll
                for (int f = 0; f < 2; f++)
                    sm80_load_matrices(a[step][f],
                                       weights + 2 * f * kDepth +
                                           16 * ((4 * pair + 2 * step + lane / 16) ^ row));
#pragma unroll
            for (int j = 0; j < n / 8; j++) {
                uint32_t b[4];
                sm80_load_matrices(b, hidden + 8 * j * kDepth + 16 * ((4 * pair + lane / 8) ^ row));
#pragma unroll
                for (int step = 0; step < 2; step++)
#pragma unroll
                    for (int f = 0; f < 2; f++)
                        sm80_multiply<half>(&sum[j][4 * f], a[step][f], b[2 * step],
                                            b[2 * step + 1]);
            }
        }
    }
};

/* float32 has no product on the tensor cores that keeps its bits: one fma an element, in the order
 * of D. */
struct product_32bit {
    static constexpr int size = 4;

    template <int n>
    static __device__ __forceinline__ void add(float (&sum)[n / 8][8], uint32_t stage)
    {
        int g = threadIdx.x % 32 / 4, column = 2 * (threadIdx.x % 4);
        uint32_t weights = stage + (threadIdx.x / 32 * kSlab + 4 * g) * kDepth;
        uint32_t hidden = stage + layout<n>::weight_bytes + column * kDepth;
#pragma unroll 2
        for (int piece = 0; piece < kPieces; piece++) {
            float4 w[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[i] = sm80_load_four(weights + i * kDepth + 16 * (piece ^ g));
#pragma unroll
            for (int j = 0; j < n / 8; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float4 h =
                        sm80_load_four(hidden + (8 * j + c) * kDepth + 16 * (piece ^ (column + c)));
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float &s = sum[j][2 * i + c];
                        s = fmaf(w[i].x, h.x, s);
                        s = fmaf(w[i].y, h.y, s);
                        s = fmaf(w[i].z, h.z, s);
                        s = fmaf(w[i].w, h.w, s);
                    }
                }
        }
    }
};

} // namespace

#endif
