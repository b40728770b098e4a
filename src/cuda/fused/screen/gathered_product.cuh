/* SPDX-License-Identifier: Apache-2.0
 *
 * The full product, by wgmma, of up to 32 rows of weights, gathered from anywhere, and the hidden
 * states of up to eight rows of the batch, by a CTA. A wgmma multiplies 64 rows; results of unused
 * rows are ignored. A dot product is summed 16 elements a wgmma, in the order of D, as in
 * fused_sm90.cuh: the logits are equal bit by bit.
 */
#ifndef GUMBEL_CUDA_GATHERED_PRODUCT_CUH
#define GUMBEL_CUDA_GATHERED_PRODUCT_CUH

#include "cuda/fused/hopper/wgmma.cuh"
#include "cuda/fused/screen/gathered_rows.cuh"
#include "cuda/fused/screen/screen_ptx.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

template <bool half> class gathered_product
{
    using segments = gathered_segments<CUDA_SCREEN_SEGMENT, CUDA_SCREEN_SEGMENTS>;
    static_assert((64 - kScoreRows) * 128 <= kGroup * 2 * CUDA_SCREEN_SEGMENT,
                  "a wgmma of 64 rows stays inside the ring");
    const segments own;

  public:
    static constexpr int ring_bytes = CUDA_SCREEN_SEGMENTS * segments::bytes;

    /* `ring`: ring_bytes; `hidden_count`: of hidden states. */
    __device__ __forceinline__ gathered_product(const cuda_params &params,
                                                const gathered_rows &memory, unsigned char *ring,
                                                int hidden_count)
        : own(params, memory, ring, hidden_count)
    {
    }

    /* Adds the products to `sum`, zero before; for all threads. The last segments may still be read
     * by other threads. */
    __device__ __forceinline__ void multiply(float (&sum)[4]) const
    {
        const int depths = sm90_depths(own.p);
        for (int segment = 0; segment < segments::ahead; segment++)
            own.copy(segment);
#pragma unroll 1
        for (int segment = 0; segment < own.all; segment++) {
            ptx_copy_async_wait<segments::ahead - 1>();
            screen_fence_shared();
            ptx_wgmma_wait<0>();
            __syncthreads(); /* this segment is complete, and the one before has been read */
            const unsigned char *stage = own.stage_of(segment);
            const uint32_t a = __shfl_sync(~0u, wgmma_address(stage), 0);
            const uint32_t b = __shfl_sync(~0u, wgmma_address(stage + segments::weight_bytes), 0);
            const int chunks = min(segments::chunks, depths - segment * segments::chunks);
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
            own.copy(segment + segments::ahead);
        }
        ptx_wgmma_wait<0>();
        ptx_copy_async_wait<0>();
    }

    /* each_gathered_sum() of this product. */
    template <class F> __device__ __forceinline__ void each(const float (&sum)[4], F f) const
    {
        each_gathered_sum(own.rows, sum, f);
    }
};

} // namespace

#endif
