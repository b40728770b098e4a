/* SPDX-License-Identifier: Apache-2.0
 *
 * The full product of gathered_product.cuh by mma.sync, on every GPU. Two warps multiply 16 rows of
 * weights each. A dot product is summed 16 elements an mma, in the order of D and past its end to a
 * multiple of 64, as in fused_sm80.cuh: the logits are equal bit by bit.
 */
#ifndef GUMBEL_CUDA_GATHERED_PRODUCT_SM80_CUH
#define GUMBEL_CUDA_GATHERED_PRODUCT_SM80_CUH

#include "cuda/common/mma_sm80.cuh"
#include "cuda/fused/screen/gathered_rows.cuh"

namespace
{

template <bool half> class gathered_product_sm80
{
    using segments = gathered_segments<CUDA_SCREEN_SM80_SEGMENT, CUDA_SCREEN_SM80_SEGMENTS>;
    const segments own;

  public:
    static constexpr int ring_bytes = CUDA_SCREEN_SM80_SEGMENTS * segments::bytes;

    /* `ring`: ring_bytes; `hidden_count`: of hidden states. */
    __device__ __forceinline__ gathered_product_sm80(const cuda_params &params,
                                                     const gathered_rows &memory,
                                                     unsigned char *ring, int hidden_count)
        : own(params, memory, ring, hidden_count)
    {
    }

    /* Adds the products to `sum`, zero before; for all threads. The last segments may still be read
     * by other threads. */
    __device__ __forceinline__ void multiply(float (&sum)[4]) const
    {
        const int depths = (int)((own.p.problem.hidden_size + kChunk - 1) / kChunk);
        for (int segment = 0; segment < segments::ahead; segment++)
            own.copy(segment);
#pragma unroll 1
        for (int segment = 0; segment < own.all; segment++) {
            ptx_copy_async_wait<segments::ahead - 1>();
            __syncthreads(); /* this segment is complete, and the one before has been read */
            if (threadIdx.x < 2 * kScoreRows)
                multiply_segment(sum, ptx_shared_address(own.stage_of(segment)),
                                 min(segments::chunks, depths - segment * segments::chunks));
            own.copy(segment + segments::ahead);
        }
        ptx_copy_async_wait<0>();
    }

    /* each_gathered_sum() of this product. */
    template <class F> __device__ __forceinline__ void each(const float (&sum)[4], F f) const
    {
        each_gathered_sum(own.rows, sum, f);
    }

  private:
    static_assert(kScoreRows == 32 && kGroup == 8, "two warps have 16 rows each, and all columns");

    /* Adds the products of the chunks of a segment at a shared address. */
    static __device__ __forceinline__ void multiply_segment(float (&sum)[4], uint32_t stage,
                                                            int chunks)
    {
        const int lane = threadIdx.x % 32, row = lane % 8;
        uint32_t weights =
            stage + (threadIdx.x / 32 * 16 + lane % 16) * 128 + 16 * (lane / 16 ^ row);
        uint32_t hidden = stage + segments::weight_bytes + row * 128 + 16 * (lane / 8 ^ row);
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; chunk++) {
#pragma unroll
            for (int pair = 0; pair < kChunk / 32; pair++) {
                uint32_t a[2][4], b[4];
                sm80_load_matrices(a[0], weights ^ 64 * pair);
                sm80_load_matrices(a[1], weights ^ (64 * pair + 32));
                sm80_load_matrices(b, hidden ^ 64 * pair);
                sm80_multiply<half>(sum, a[0], b[0], b[1]);
                sm80_multiply<half>(sum, a[1], b[2], b[3]);
            }
            weights += kScoreRows * 128;
            hidden += kGroup * 128;
        }
    }
};

} // namespace

#endif
