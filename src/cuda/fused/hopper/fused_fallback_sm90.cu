/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes on Hopper (fused_sm90.cuh) that mostly are not needed, behind a screened draw whose
 * outcome the host does not wait for: the draw of a plain call, whose samples have columns of their
 * own and whose rows may have masks, where a word says that it must be made; and where rows are
 * cut, the product that stores the logits of all, where any row is left, of [B]. Else CTAs read
 * that and end.
 */
#include "cuda/fused/hopper/fused_sm90.cuh"

namespace
{

/* Whether any row is left, for all threads. */
__device__ __forceinline__ bool any_left(int64_t batch, const int32_t *left)
{
    bool found = false;
    for (int64_t b = threadIdx.x; b < batch; b += CUDA_SM90_THREADS)
        found |= __ldcg(&left[b]) != 0;
    return __syncthreads_or(found);
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
            const __grid_constant__ CUtensorMap hidden, const int32_t *left)                       \
    {                                                                                              \
        ptx_wait_for_launch();                                                                     \
        if (any_left(params.problem.batch, left))                                                  \
            fused<n, half>(params, &weight, &hidden);                                              \
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, bf16, false)                                                                         \
    KERNEL(n, f16, true)
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNELS(64)
