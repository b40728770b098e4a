/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes on Hopper (fused_sm90.cuh) that mostly are not needed, behind something faster whose
 * outcome the host does not wait for. The draw of a plain call, whose samples have columns of their
 * own and whose rows may have masks, goes behind a screened one, where a word says that it must be
 * made. The product that stores all logits goes behind one that stored by bounds for lists of first
 * tokens, where any row is left that bounds left something out of: all rows are stored then, `left`
 * and `bounded` are [B]. Else CTAs read these words and end.
 */
#include "cuda/fused/hopper/fused_sm90.cuh"

namespace
{

/* Whether any of so many rows is left of which not all is stored, for all threads. */
__device__ __forceinline__ bool any_lacks(int64_t batch, const int32_t *left,
                                          const int32_t *bounded)
{
    bool lacks = false;
    for (int64_t b = threadIdx.x; b < batch; b += CUDA_SM90_THREADS)
        lacks |= __ldcg(&left[b]) && __ldcg(&bounded[b]);
    return __syncthreads_or(lacks);
}

} // namespace

#define KERNEL(n, dtype, half)                                                                     \
    extern "C" __global__ void __launch_bounds__(CUDA_SM90_THREADS, 1)                             \
        gumbel_fused_again_##dtype##_##n(const __grid_constant__ sm90_spread_call params,          \
                                         const __grid_constant__ CUtensorMap weight,               \
                                         const __grid_constant__ CUtensorMap hidden,               \
                                         const uint32_t *again)                                    \
    {                                                                                              \
        ptx_wait_for_launch();                                                                     \
        if (__ldcg(again))                                                                         \
            fused<n, half>(params, &weight, &hidden);                                              \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(CUDA_SM90_THREADS, 1)                             \
        gumbel_store_again_##dtype##_##n(                                                          \
            const __grid_constant__ sm90_call<CUDA_SM90_STORED> params,                            \
            const __grid_constant__ CUtensorMap weight,                                            \
            const __grid_constant__ CUtensorMap hidden, const int32_t *left,                       \
            const int32_t *bounded)                                                                \
    {                                                                                              \
        ptx_wait_for_launch();                                                                     \
        if (any_lacks(params.problem.batch, left, bounded))                                        \
            fused<n, half>(params, &weight, &hidden);                                              \
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, bf16, false)                                                                         \
    KERNEL(n, f16, true)
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNELS(64)
