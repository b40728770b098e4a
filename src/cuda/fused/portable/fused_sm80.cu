/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the fused draw (eq. 1 to 4; FlashSampling, Algorithm 2) on GPUs of compute capability 8.0
 *        and later: bfloat16 and float16 on the tensor cores; float32, and 16-bit weights with
 *        float32 hidden states, by fma.
 * COST   the weights, read once for every n <= 64 batch rows, or 8 with mixed dtypes; 2 V D n
 *        flops. Of 16-bit weights and more rows than 32, see fused_wide_sm80.cu.
 * MAP    as many CTAs of four warps as a GPU runs at once (two or three a multiprocessor); each
 *        takes one contiguous range of the vocabulary, in tiles of 128 tokens. A warp takes 32 of
 *        these tokens and all n columns, the batch padded to 8 .. 64; a lane takes the four tokens
 *        of a Philox block and two of every eight columns. The draw from a tile is interleaved with
 *        the stages of the next product, all columns or 16 a stage, so that the loads hide it.
 * SMEM   a ring of 3 or 4 stages, each with 128 bytes of 128 weight rows (16 KiB) and of n hidden
 *        states (128 n bytes; 256 n with mixed dtypes); 104 bytes a column and sample; 480
 *        bytes a warp; with the mass, 192 bytes a column.
 * SYNC   one __syncthreads() a stage: every warp waits until all copies of the stage have arrived,
 *        and until all warps have read the stage that is overwritten next. These barriers also
 *        separate the items of the draw: no interval between two of them both writes and reads a
 *        threshold or the value it will be raised to. No CTA waits for another.
 * NUMERICS  a dot product is summed 16 elements an mma (float32: one an fma), in the order of D;
 *        with mixed dtypes in the CPU's order (docs/maths.md, section 4), to the same bits. Masses
 *        of 32 tokens are added exactly. Nothing depends on n, the batch or the grid.
 */
#include "cuda/fused/portable/fused_sm80.cuh"

#define KERNEL(n, name, product, ctas)                                                             \
    extern "C" __global__ void __launch_bounds__(kThreads, ctas)                                   \
        gumbel_fused_sm80_##name##_##n(const __grid_constant__ cuda_params params)                 \
    {                                                                                              \
        run_fused_sm80<n, product>(params, summary_call());                                        \
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, bf16, product_16bit<false>, CUDA_SM80_CTAS(n))                                       \
    KERNEL(n, f16, product_16bit<true>, CUDA_SM80_CTAS(n))                                         \
    KERNEL(n, f32, product_32bit, CUDA_SM80_CTAS(n))
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNEL(64, f32, product_32bit, CUDA_SM80_CTAS(64))
KERNEL(8, mixed_bf16, product_mixed<false>, CUDA_SM80_MIXED_CTAS)
KERNEL(8, mixed_f16, product_mixed<true>, CUDA_SM80_MIXED_CTAS)
