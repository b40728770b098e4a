/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of the fused draw on Hopper (fused_sm90.cuh): one for each dtype, width and case of a
 * call.
 */
#include "cuda/fused/hopper/fused_sm90.cuh"

#define KERNEL(n, dtype, half, suffix, kind, clusters)                                             \
    extern "C" __global__ void clusters __launch_bounds__(CUDA_SM90_THREADS, 1)                    \
        gumbel_fused_sm90_##dtype##_##n##_##suffix(const __grid_constant__ sm90_call<kind> params, \
                                                   const __grid_constant__ CUtensorMap weight,     \
                                                   const __grid_constant__ CUtensorMap hidden)     \
    {                                                                                              \
        fused<n, half>(params, &weight, &hidden);                                                  \
    }
#define CASES(n, dtype, half, clusters)                                                            \
    KERNEL(n, dtype, half, plain, CUDA_SM90_PLAIN, clusters)                                       \
    KERNEL(n, dtype, half, plain_mass, CUDA_SM90_PLAIN_MASS, clusters)                             \
    KERNEL(n, dtype, half, stored, CUDA_SM90_STORED, clusters)                                     \
    KERNEL(n, dtype, half, any, CUDA_SM90_ANY, clusters)
#define KERNELS(n, clusters)                                                                       \
    CASES(n, bf16, false, clusters)                                                                \
    CASES(n, f16, true, clusters)
#define NARROW(n)                                                                                  \
    static_assert(CUDA_SM90_HAS_BOTH(n), "which is then looked for");                              \
    KERNELS(n, )                                                                                   \
    KERNEL(n, bf16, false, both, CUDA_SM90_BOTH, )                                                 \
    KERNEL(n, f16, true, both, CUDA_SM90_BOTH, )
NARROW(8)
NARROW(16)
NARROW(32)
NARROW(64)
KERNELS(128, __cluster_dims__(CUDA_SM90_CLUSTER(128), 1, 1))
KERNELS(256, )
