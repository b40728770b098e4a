/* SPDX-License-Identifier: Apache-2.0
 *
 * The bfloat16 kernels of the fused draw on Hopper (fused_sm90.cuh): one for each width and case of
 * a call. fused_half_sm90.cu compiles this file once more for float16.
 */
#include "cuda/fused/hopper/fused_sm90.cuh"

#define KERNEL(n, dtype, half, suffix, kind, clusters)                                             \
    extern "C" __global__ void clusters __launch_bounds__(CUDA_SM90_THREADS, 1)                    \
        gumbel_fused_sm90_##dtype##_##n##_##suffix(const __grid_constant__ sm90_call<kind> params, \
                                                   const __grid_constant__ CUtensorMap weight,     \
                                                   const __grid_constant__ CUtensorMap hidden)     \
    {                                                                                              \
        run_fused_draw<n, half>(params, &weight, &hidden);                                         \
    }
#define CASES(n, dtype, half, clusters)                                                            \
    KERNEL(n, dtype, half, plain, CUDA_SM90_PLAIN, clusters)                                       \
    KERNEL(n, dtype, half, plain_mass, CUDA_SM90_PLAIN_MASS, clusters)                             \
    KERNEL(n, dtype, half, stored, CUDA_SM90_STORED, clusters)                                     \
    KERNEL(n, dtype, half, any, CUDA_SM90_ANY, clusters)
#ifdef SM90_HALF
#define KERNELS(n, clusters) CASES(n, f16, true, clusters)
#define KERNEL_OF_BOTH(n)    KERNEL(n, f16, true, both, CUDA_SM90_BOTH, )
#else
#define KERNELS(n, clusters) CASES(n, bf16, false, clusters)
#define KERNEL_OF_BOTH(n)    KERNEL(n, bf16, false, both, CUDA_SM90_BOTH, )
#endif
#define NARROW(n)                                                                                  \
    static_assert(CUDA_SM90_HAS_BOTH(n), "the host loads this kernel by name");                    \
    KERNELS(n, )                                                                                   \
    KERNEL_OF_BOTH(n)
NARROW(8)
NARROW(16)
NARROW(32)
NARROW(64)
KERNELS(128, __cluster_dims__(CUDA_SM90_CLUSTER(128), 1, 1))
#undef KERNEL
#undef CASES
#undef KERNELS
#undef KERNEL_OF_BOTH
#undef NARROW
