/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass on Hopper (fused_sm90.cuh) that mostly is not needed, behind a screened draw whose outcome
 * the host does not wait for: the draw of a plain call, whose samples have columns of their own and
 * whose rows may have masks, where a word says that it must be made. Else CTAs read it and end.
 */
#include "cuda/fused/hopper/fused_sm90.cuh"

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
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, bf16, false)                                                                         \
    KERNEL(n, f16, true)
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNELS(64)
