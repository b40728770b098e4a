/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of weights gathered from anywhere, and hidden states of up to eight rows of the batch, for a
 * CTA that multiplies them (gathered_product.cuh, gathered_product_sm80.cuh): the ring of segments
 * in shared memory that it copies them to. A segment holds some columns of 32 rows of weights, then
 * of 8 hidden states, each as [chunks][rows][64], 64 columns in 128-byte swizzle.
 */
#ifndef GUMBEL_CUDA_GATHERED_ROWS_CUH
#define GUMBEL_CUDA_GATHERED_ROWS_CUH

#include "cuda/common/cuda_params.h"
#include "cuda/common/swizzle.cuh"
#include "cuda/policy/screen_policy.h"

namespace
{

constexpr int kScoreRows = CUDA_SCREEN_SCORE_TILE, kGroup = CUDA_SCREEN_GROUP;
constexpr int kChunk = 64; /* columns of a swizzled row of 128 bytes */

/* The rows to multiply, in shared memory. */
struct gathered_rows {
    const uint16_t *weights[kScoreRows];
    int count;                      /* of weights */
    const uint16_t *hidden[kGroup]; /* the hidden state of each row of the batch */
};

/* Calls f(index of the weights, row of the batch, logit) for each sum of this thread (layout:
 * wgmma.cuh). */
template <class F>
__device__ __forceinline__ void each_gathered_sum(const gathered_rows &rows, const float (&sum)[4],
                                                  F f)
{
    const int thread = threadIdx.x;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        const int at = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2);
        const int column = 2 * (thread % 4) + i % 2;
        const float logit = i & 2 ? (i & 1 ? sum[3] : sum[2]) : i & 1 ? sum[1] : sum[0];
        if (at < rows.count)
            f(at, column, logit);
    }
}

/* A ring of `count` segments of `columns` columns. */
template <int columns, int count> struct gathered_segments {
    static constexpr int chunks = columns / kChunk;
    static constexpr int weight_bytes = kScoreRows * 2 * columns; /* of a segment */
    static constexpr int bytes = (kScoreRows + kGroup) * 2 * columns;
    static constexpr int units = columns / 8; /* of 16 bytes, a row */
    static constexpr int ahead = count - 1;   /* segments that are copied ahead of the product */

    const cuda_params &p;
    const gathered_rows &rows;
    unsigned char *stages;
    const int hidden; /* hidden states */
    const int all;    /* segments of D */

    /* `ring`: `count` segments. */
    __device__ __forceinline__ gathered_segments(const cuda_params &params,
                                                 const gathered_rows &memory, unsigned char *ring,
                                                 int hidden_count)
        : p(params), rows(memory), stages(ring), hidden(hidden_count),
          all((int)((params.problem.hidden_size + columns - 1) / columns))
    {
    }

    __device__ __forceinline__ unsigned char *stage_of(int segment) const
    {
        return stages + segment % count * bytes;
    }

    /* Copies a segment of the weights and of the hidden states, as one group. Each thread copies
     * the same columns of some of the rows. */
    __device__ __forceinline__ void copy(int segment) const
    {
        constexpr int turn = CUDA_SCREEN_SCORE_THREADS / units;
        const int thread = threadIdx.x, unit = thread % units, chunk = unit / 8;
        const int64_t column = (int64_t)segment * columns + 8 * unit;
        const bool is_inside = column < p.problem.hidden_size;
        unsigned char *to = stage_of(segment);
        if (segment < all) {
#pragma unroll 4
            for (int row = thread / units; row < rows.count; row += turn)
                copy_swizzled_unit(to + chunk * kScoreRows * 128, row, rows.weights[row] + column,
                                   is_inside);
            for (int row = thread / units; row < hidden; row += turn)
                copy_swizzled_unit(to + weight_bytes + chunk * kGroup * 128, row,
                                   rows.hidden[row] + column, is_inside);
        }
        ptx_copy_async_commit();
    }
};

} // namespace

#endif
