/* SPDX-License-Identifier: Apache-2.0
 *
 * The bfloat16 kernels of the fused draw on Hopper (fused_sm90.cuh): one for each width and case of
 * a call. fused_half_sm90.cu compiles this file once more for float16.
 */
#include "cuda/fused/hopper/fused_sm90.cuh"

#define KERNEL(n, dtype, half, suffix, call, clusters)                                             \
    extern "C" __global__ void clusters __launch_bounds__(CUDA_SM90_THREADS, 1)                    \
        gumbel_fused_sm90_##dtype##_##n##_##suffix(const __grid_constant__ call params,            \
                                                   const __grid_constant__ CUtensorMap weight,     \
                                                   const __grid_constant__ CUtensorMap hidden)     \
    {                                                                                              \
        run_fused_draw<n, half>(params, &weight, &hidden);                                         \
    }
#define CASES(n, dtype, half, clusters)                                                            \
    KERNEL(n, dtype, half, plain, sm90_call<CUDA_SM90_PLAIN>, clusters)                            \
    KERNEL(n, dtype, half, plain_mass, sm90_call<CUDA_SM90_PLAIN_MASS>, clusters)                  \
    KERNEL(n, dtype, half, stored, sm90_call<CUDA_SM90_STORED>, clusters)                          \
    KERNEL(n, dtype, half, any, sm90_call<CUDA_SM90_ANY>, clusters)                                \
    KERNEL(n, dtype, half, statistics, sm90_statistics_call, clusters)
#ifdef SM90_HALF
#define KERNELS(n, clusters) CASES(n, f16, true, clusters)
#define KERNEL_OF_BOTH(n)    KERNEL(n, f16, true, both, sm90_call<CUDA_SM90_BOTH>, )
#else
#define KERNELS(n, clusters) CASES(n, bf16, false, clusters)
#define KERNEL_OF_BOTH(n)    KERNEL(n, bf16, false, both, sm90_call<CUDA_SM90_BOTH>, )
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
