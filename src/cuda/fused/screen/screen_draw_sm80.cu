/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the first pass of a draw with a screen of bytes on every GPU, as screen_draw.cu on Hopper.
 * COST   V D bytes, read once; 4 V D B byte operations on the tensor cores.
 * MAP    as screen_draw.cu; a warp copies the stages, and a consumer's four warps multiply 16 rows
 *        of either half of a tile each, by mma.sync. Registers are divided evenly among the warps.
 * SMEM   as screen_draw.cu, with as many stages as fit the GPU: two or more.
 * SYNC   as screen_draw.cu. Copies arrive at `full`, 32 lanes a stage; the four warps of a consumer
 *        arrive at `empty`.
 * NUMERICS  as screen_draw.cu.
 */
#include "cuda/fused/screen/screen_consume.cuh"
#include "cuda/fused/screen/screen_multiply_sm80.cuh"

#define KERNEL(n, name, kind)                                                                      \
    extern "C" __global__ void __launch_bounds__(CUDA_SM90_THREADS, 1)                             \
        gumbel_screen_tensor_##n##name(const __grid_constant__ screen_call<kind, false> s)         \
    {                                                                                              \
        run_screen_draw<n, screen_mma_ring>(s);                                                    \
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, , CUDA_SCREEN_PLAIN)                                                                 \
    KERNEL(n, _any, CUDA_SCREEN_ANY)
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNELS(64)
KERNELS(128)
