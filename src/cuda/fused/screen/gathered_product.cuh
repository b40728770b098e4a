/* SPDX-License-Identifier: Apache-2.0
 *
 * The full product of up to 32 rows of weights, gathered from anywhere, and the hidden states of up
 * to eight rows of the batch, by a CTA. A wgmma multiplies 64 rows; results of unused rows are
 * ignored. Shared memory is a ring of segments of 512 columns: 32 rows of weights, then 8 hidden
 * states, each as [8][rows][64], 64 columns in 128-byte swizzle. A dot product is summed 16
 * elements a wgmma, in the order of D, as in fused_sm90.cuh: the logits are equal bit by bit.
 */
#ifndef GUMBEL_CUDA_GATHERED_PRODUCT_CUH
#define GUMBEL_CUDA_GATHERED_PRODUCT_CUH

#include "cuda/fused/hopper/wgmma.cuh"
#include "cuda/fused/screen/screen_ptx.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"
#include "cuda/policy/screen_policy.h"

namespace
{

constexpr int kScoreRows = CUDA_SCREEN_SCORE_TILE, kGroup = CUDA_SCREEN_GROUP;
constexpr int kChunk = 64; /* columns of a swizzled row of 128 bytes */
constexpr int kChunks = CUDA_SCREEN_SEGMENT / kChunk;
constexpr int kWeightBytes = kScoreRows * 2 * CUDA_SCREEN_SEGMENT; /* of a segment */
constexpr int kUnits = CUDA_SCREEN_SEGMENT / 8;                    /* of 16 bytes, a row */
constexpr int kSegmentsAhead = CUDA_SCREEN_SEGMENTS - 1;
static_assert((64 - kScoreRows) * 128 <= kGroup * 2 * CUDA_SCREEN_SEGMENT,
              "a wgmma of 64 rows stays inside the ring");

/* The rows to multiply, in shared memory. */
struct gathered_rows {
    const uint16_t *weights[kScoreRows];
    int count;                      /* of weights */
    const uint16_t *hidden[kGroup]; /* the hidden state of each row of the batch */
};

template <bool half> class gathered_product
{
    const cuda_params &p;
    const gathered_rows &rows;
    unsigned char *stages;
    const int hidden, thread, segments;

  public:
    /* `ring`: CUDA_SCREEN_SEGMENTS segments; `hidden_count`: of hidden states. */
    __device__ __forceinline__ gathered_product(const cuda_params &params,
                                                const gathered_rows &memory, unsigned char *ring,
                                                int hidden_count)
        : p(params), rows(memory), stages(ring), hidden(hidden_count), thread(threadIdx.x),
          segments(
              (int)((params.problem.hidden_size + CUDA_SCREEN_SEGMENT - 1) / CUDA_SCREEN_SEGMENT))
    {
    }

    /* Adds the products to `sum`, zero before; for all threads. The last segments may still be read
     * by other threads. */
    __device__ __forceinline__ void multiply(float (&sum)[4]) const
    {
        const int depths = sm90_depths(p);
        for (int segment = 0; segment < kSegmentsAhead; segment++)
            copy(segment);
#pragma unroll 1
        for (int segment = 0; segment < segments; segment++) {
            ptx_copy_async_wait<kSegmentsAhead - 1>();
            screen_fence_shared();
            ptx_wgmma_wait<0>();
            __syncthreads(); /* this segment is complete, and the one before has been read */
            const unsigned char *stage =
                stages + segment % CUDA_SCREEN_SEGMENTS * CUDA_SCREEN_SEGMENT_BYTES;
            const uint32_t a = __shfl_sync(~0u, wgmma_address(stage), 0);
            const uint32_t b = __shfl_sync(~0u, wgmma_address(stage + kWeightBytes), 0);
            const int chunks = min(kChunks, depths - segment * kChunks);
#pragma unroll 1
            for (int chunk = 0; chunk < chunks; chunk++) {
                ptx_wgmma_fence();
#pragma unroll
                for (int step = 0; step < kChunk / 16; step++)
                    wgmma<8, half>::add(
                        sum, wgmma_descriptor(a + chunk * (kScoreRows * 128 / 16) + 2 * step),
                        wgmma_descriptor(b + chunk * (kGroup * 128 / 16) + 2 * step));
            }
            ptx_wgmma_commit();
            copy(segment + kSegmentsAhead);
        }
        ptx_wgmma_wait<0>();
        ptx_copy_async_wait<0>();
    }

    /* Calls f(index of the weights, row of the batch, logit) for each sum of this thread (layout:
     * wgmma.cuh). */
    template <class F> __device__ __forceinline__ void each(const float (&sum)[4], F f) const
    {
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const int at = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2);
            const int column = 2 * (thread % 4) + i % 2;
            const float logit = i & 2 ? (i & 1 ? sum[3] : sum[2]) : i & 1 ? sum[1] : sum[0];
            if (at < rows.count)
                f(at, column, logit);
        }
    }

  private:
    /* Copies 16 bytes of a row of this thread to their place in a chunk, or clears them. */
    static __device__ __forceinline__ void copy_unit(unsigned char *chunk, int row,
                                                     const uint16_t *from, bool is_inside)
    {
        unsigned char *place = chunk + row * 128 + ((threadIdx.x % 8) ^ (row % 8)) * 16;
        if (is_inside)
            ptx_copy_async<16>(place, from);
        else
            *(uint4 *)place = {0, 0, 0, 0};
    }

    /* Copies a segment of the weights and of the hidden states. Each thread copies the
     * same columns of every second row. */
    __device__ __forceinline__ void copy(int segment) const
    {
        constexpr int turn = CUDA_SCREEN_SCORE_THREADS / kUnits;
        const int unit = thread % kUnits, chunk = unit / 8;
        const int64_t column = (int64_t)segment * CUDA_SCREEN_SEGMENT + 8 * unit;
        const bool is_inside = column < p.problem.hidden_size;
        unsigned char *to = stages + segment % CUDA_SCREEN_SEGMENTS * CUDA_SCREEN_SEGMENT_BYTES;
        if (segment < segments) {
#pragma unroll 4
            for (int row = thread / kUnits; row < rows.count; row += turn)
                copy_unit(to + chunk * kScoreRows * 128, row, rows.weights[row] + column,
                          is_inside);
            for (int row = thread / kUnits; row < hidden; row += turn)
                copy_unit(to + kWeightBytes + chunk * kGroup * 128, row, rows.hidden[row] + column,
                          is_inside);
        }
        ptx_copy_async_commit();
    }
};

} // namespace

#endif
