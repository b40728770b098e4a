/* SPDX-License-Identifier: Apache-2.0
 *
 * The stages of the rung `tensor`: how weights and hidden states are copied to shared memory, and
 * how a warp multiplies them.
 *
 * A stage holds 128 bytes of each of 128 weight rows, and as many elements of each of n hidden
 * states, one row after the other. Elements of hidden states have the width of weights or twice
 * that (`ratio`). The 16-byte vectors of a row are swizzled, vector c to place c ^ (row / 4 % 8)
 * for weights and c ^ (row % 8) for hidden states, so that eight addresses that are read together
 * lie in different banks: a lane's four tokens are neighbours, hence a quarter warp reads every
 * fourth row.
 */
#ifndef GUMBEL_CUDA_PRODUCT_SM80_CUH
#define GUMBEL_CUDA_PRODUCT_SM80_CUH

#include "cuda/common/cuda_params.h"
#include "cuda/policy/cuda_policy.h"
#include "cuda/common/mma_sm80.cuh"
#include "cuda/common/widen.cuh"

namespace
{

constexpr int kTile = CUDA_SM80_TILE, kThreads = CUDA_SM80_THREADS, kWarps = kThreads / 32;
constexpr int kWarpTile = CUDA_SM80_WARP_TILE; /* tokens of a tile that a warp takes */
constexpr int kDepth = 128;                    /* bytes of a row in a stage */
constexpr int kVectors = kDepth / 16;
constexpr int kRowsAtOnce = kThreads / kVectors; /* rows that the CTA copies at once */
static_assert(kWarpTile * kWarps == kTile, "a tile is a warp tile of each warp");
static_assert(kWarpTile == 32, "a lane takes four of the tokens of two 16-row products");
static_assert(kRowsAtOnce == 16, "the swizzle of a thread's rows is written for this");

template <int n, int ratio> struct stage_layout {
    static constexpr int weight_bytes = kTile * kDepth;
    static constexpr int stage_bytes = weight_bytes + n * kDepth * ratio;
    static constexpr int stages = CUDA_SM80_STAGES(n);
};

/* A thread's copies: one vector of every 16th weight row, tile after tile, and of every 16th or 8th
 * hidden state. */
template <int n, int ratio> struct stage_loader {
    using sizes = stage_layout<n, ratio>;
    static constexpr int hidden_vectors = kVectors * ratio;
    static constexpr int hidden_at_once = kThreads / hidden_vectors;

    const unsigned char *weight; /* its first row of the tile, at the current depth */
    const unsigned char *hidden;
    int64_t weight_step, hidden_step; /* bytes to its next row */
    int64_t first, end;               /* tokens of this CTA that count */
    int64_t token;                    /* of its first row of the tile */
    int bytes;                        /* from its vector at depth 0 to the end of the row */
    int row_bytes, remaining, hidden_remaining, columns;
    uint32_t weight_to, hidden_to; /* shared addresses in the next stage */
    uint32_t last_to;              /* weight_to in the last stage of the ring */
    uint32_t counts;               /* bit i: its row i of the tile counts */

    /* `size`: bytes of an element of the weights. */
    __device__ __forceinline__ stage_loader(const gumbel_problem &q, int size, uint32_t ring,
                                            int64_t begin, int64_t last)
    {
        int vector = threadIdx.x % kVectors, row = threadIdx.x / kVectors;
        int hidden_vector = threadIdx.x % hidden_vectors, column = threadIdx.x / hidden_vectors;
        int64_t weight_row = q.weight.stride * size, hidden_row = q.hidden.stride * size * ratio;
        weight_step = kRowsAtOnce * weight_row;
        hidden_step = hidden_at_once * hidden_row;
        first = q.first_token > begin ? q.first_token : begin;
        end = last;
        token = begin + row;
        weight = (const unsigned char *)q.weight.data + (token - q.first_token) * weight_row +
                 16 * vector;
        hidden = (const unsigned char *)q.hidden.data + column * hidden_row + 16 * hidden_vector;
        row_bytes = (int)(q.hidden_size * size);
        bytes = remaining = row_bytes - 16 * vector;
        hidden_remaining = row_bytes * ratio - 16 * hidden_vector;
        columns = (int)q.batch - column;
        weight_to = ring + row * kDepth + 16 * (vector ^ row / 4);
        hidden_to = ring + sizes::weight_bytes + column * kDepth * ratio +
                    16 * (hidden_vector ^ column % 8);
        last_to = weight_to + (sizes::stages - 1) * sizes::stage_bytes;
        mark_rows();
    }

    __device__ __forceinline__ void mark_rows()
    {
        counts = 0;
#pragma unroll
        for (int i = 0; i < kTile / kRowsAtOnce; i++)
            counts |= (uint32_t)(token + kRowsAtOnce * i >= first && token + kRowsAtOnce * i < end)
                      << i;
    }

    static __device__ __forceinline__ uint32_t clamp_to_vector(int bytes_remaining)
    {
        return bytes_remaining < 0 ? 0 : bytes_remaining < 16 ? bytes_remaining : 16;
    }

    /* Issues the copies of a stage, and advances to the next one. */
    __device__ __forceinline__ void copy()
    {
        uint32_t size = clamp_to_vector(remaining), hidden_size = clamp_to_vector(hidden_remaining);
#pragma unroll
        for (int i = 0; i < kTile / kRowsAtOnce; i++)
            sm80_copy((weight_to ^ (i & 1) << 6) + i * kRowsAtOnce * kDepth,
                      weight + i * weight_step, counts >> i & 1 ? size : 0);
#pragma unroll
        for (int i = 0; i < (n + hidden_at_once - 1) / hidden_at_once; i++)
            if (n % hidden_at_once == 0 || threadIdx.x < n * hidden_vectors)
                sm80_copy(hidden_to + i * hidden_at_once * kDepth * ratio, hidden + i * hidden_step,
                          hidden_at_once * i < columns ? hidden_size : 0);
        weight += kDepth;
        hidden += kDepth * ratio;
        remaining -= kDepth;
        hidden_remaining -= kDepth * ratio;
        uint32_t on =
            weight_to == last_to ? -(sizes::stages - 1) * sizes::stage_bytes : sizes::stage_bytes;
        weight_to += on;
        hidden_to += on;
        if (remaining <= bytes - row_bytes)
            next_tile();
    }

    __device__ __forceinline__ void next_tile()
    {
        int back = bytes - remaining;
        weight += kTile / kRowsAtOnce * weight_step - back;
        hidden -= back * ratio;
        remaining = bytes;
        hidden_remaining += back * ratio;
        token += kTile;
        mark_rows();
    }

    /* Issues the copies of the next stage, if there is one, as one group. */
    __device__ __forceinline__ void copy_next()
    {
        if (token - threadIdx.x / kVectors < end)
            copy();
        sm80_copy_commit();
    }
};

/* A lane's accumulators: value[j][2 i + c] is token i (of the four from 4 * (lane / 4) on) and
 * column 8 j + 2 * (lane % 4) + c. */
template <int n> struct plain_sums {
    float value[n / 8][8];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < n; i++)
            value[i / 8][i % 8] = 0.0f;
    }

    __device__ __forceinline__ void finish(float (&out)[n / 8][8]) const
    {
#pragma unroll
        for (int i = 0; i < n; i++)
            out[i / 8][i % 8] = value[i / 8][i % 8];
    }
};

/* The product of a warp's warp tile with one stage. */
template <bool half> struct product_16bit {
    static constexpr int size = 2, ratio = 1;
    static constexpr int draw_groups = 4; /* groups of columns that an item of the draw processes */
    template <int n> using sums = plain_sums<n>;

    /* MMA row 8 h + g of block f is token 4 g + 2 f + h. */
    template <int n>
    static __device__ __forceinline__ void add(plain_sums<n> &sum, uint32_t stage, int64_t)
    {
        int lane = threadIdx.x % 32, row = lane % 8;
        uint32_t warp_tile = stage + threadIdx.x / 32 * kWarpTile * kDepth;
        uint32_t weights = warp_tile + (4 * row + (lane / 8 & 1)) * kDepth;
        uint32_t hidden = stage + kTile * kDepth + row * kDepth;
#pragma unroll
        for (int pair = 0; pair < kVectors / 4; pair++) {
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
                        sm80_multiply<half>(&sum.value[j][4 * f], a[step][f], b[2 * step],
                                            b[2 * step + 1]);
            }
        }
    }
};

/* float32: one fma an element, in the order of D, as no tensor-core product keeps its bits. */
struct product_32bit {
    static constexpr int size = 4, ratio = 1;
    static constexpr int draw_groups = 2; /* more take registers from the product */
    template <int n> using sums = plain_sums<n>;

    template <int n>
    static __device__ __forceinline__ void add(plain_sums<n> &sum, uint32_t stage, int64_t)
    {
        int g = threadIdx.x % 32 / 4, column = 2 * (threadIdx.x % 4);
        uint32_t weights = stage + (threadIdx.x / 32 * kWarpTile + 4 * g) * kDepth;
        uint32_t hidden = stage + kTile * kDepth + column * kDepth;
#pragma unroll 2
        for (int vector = 0; vector < kVectors; vector++) {
            float4 w[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[i] = sm80_load_four(weights + i * kDepth + 16 * (vector ^ g));
#pragma unroll
            for (int j = 0; j < n / 8; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float4 h = sm80_load_four(hidden + (8 * j + c) * kDepth +
                                              16 * (vector ^ (column + c)));
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float &s = sum.value[j][2 * i + c];
                        s = fmaf(w[i].x, h.x, s);
                        s = fmaf(w[i].y, h.y, s);
                        s = fmaf(w[i].z, h.z, s);
                        s = fmaf(w[i].w, h.w, s);
                    }
                }
        }
    }
};

/* The sixteen partial sums of docs/maths.md, section 4, of each of a lane's tokens and columns. */
struct canonical_sums {
    float value[16][8];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < 128; i++)
            value[i / 8][i % 8] = 0.0f;
    }

    __device__ __forceinline__ void finish(float (&out)[1][8]) const
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float s[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                s[j] = value[j][i] + value[j + 8][i];
#pragma unroll
            for (int half = 4; half > 0; half /= 2)
#pragma unroll
                for (int j = 0; j < half; j++)
                    s[j] += s[j + half];
            out[0][i] = s[0];
        }
    }
};

/* 16-bit weights with float32 hidden states: by fma, in the order of the canonical dot product, so
 * that the bits equal those of the CPU and of the naive kernel. n is 8: more sums do not fit the
 * registers. */
template <bool half> struct product_mixed {
    static constexpr int size = 2, ratio = 2;
    static constexpr int draw_groups = 1;
    template <int n> using sums = canonical_sums;

    /* `remaining` elements of the rows are in this stage and later ones. A half of 32 without any
     * of them is skipped: adding zeros could turn -0 to +0. */
    template <int n>
    static __device__ __forceinline__ void add(canonical_sums &sum, uint32_t stage,
                                               int64_t remaining)
    {
        static_assert(n == 8, "there is one group of columns");
        int g = threadIdx.x % 32 / 4, column = 2 * (threadIdx.x % 4);
        uint32_t weights = stage + (threadIdx.x / 32 * kWarpTile + 4 * g) * kDepth;
        uint32_t hidden = stage + kTile * kDepth + column * kDepth * ratio;
#pragma unroll 1
        for (int side = 0; side < 2 && 32 * side < remaining; side++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                add_vector(sum, weights, hidden, g, column, 4 * side, c);
    }

  private:
    /* Adds eight elements of the rows: vector `first` + c. */
    static __device__ __forceinline__ void add_vector(canonical_sums &sum, uint32_t weights,
                                                      uint32_t hidden, int g, int column, int first,
                                                      int c)
    {
        int vector = first + c;
        float h[2][8];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t row = hidden + k / 2 * kDepth * ratio;
            float4 x = sm80_load_four(row + 16 * ((2 * vector + k % 2) ^ (column + k / 2)));
            float *to = &h[k / 2][4 * (k % 2)];
            to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float4 raw = sm80_load_four(weights + i * kDepth + 16 * (vector ^ g));
            const float words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
            for (int k = 0; k < 8; k++) {
                uint32_t word = __float_as_uint(words[k / 2]);
                uint32_t bits = k % 2 ? word >> 16 : word & 0xffffu;
                float w = half ? widen_f16(bits) : widen_bf16(bits);
                float *s = sum.value[half ? 8 * (c % 2) + k : 4 * c + k / 2] + 2 * i;
                s[0] = fmaf(w, h[0][k], s[0]);
                s[1] = fmaf(w, h[1][k], s[1]);
            }
        }
    }
};

} // namespace

#endif
