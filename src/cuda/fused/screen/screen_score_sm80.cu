/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the kernels around a screen's product on every GPU, as those of screen_score.cu on Hopper:
 *        they split hidden states, and score candidates by mma.sync, with the bits of
 *        fused_sm80.cu.
 * COST   scoring: 2 D bytes a candidate and a chain of D / 16 mma.
 * MAP    as screen_score.cu.
 */
#include "cuda/fused/screen/gathered_product_sm80.cuh"
#include "cuda/fused/screen/screen_score.cuh"
#include "cuda/fused/screen/screen_split.cuh"

#define KERNEL(name, kind)                                                                         \
    extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_SPLIT_THREADS, 2)                     \
        gumbel_split_tensor##name(const __grid_constant__ screen_call<kind, false> s)              \
    {                                                                                              \
        split_row(s);                                                                              \
    }
KERNEL(, CUDA_SCREEN_PLAIN)
KERNEL(_any, CUDA_SCREEN_ANY)
#undef KERNEL

/* CUDA_SCREEN_ANY serves plain calls, too: no tile waits for its code. */
#define KERNEL(dtype, half)                                                                        \
    extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_SCORE_THREADS)                        \
        gumbel_score_tensor_##dtype(const __grid_constant__ screen_call<CUDA_SCREEN_ANY, false> s) \
    {                                                                                              \
        run_scoring<gathered_product_sm80<half>>(s);                                               \
    }
KERNEL(bf16, false)
KERNEL(f16, true)
