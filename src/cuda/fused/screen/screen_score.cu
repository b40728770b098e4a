/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the kernels around a screen's product on Hopper. Before it: hidden states are split into
 *        planes of bytes. After it: the full product scores the candidates and outputs are written;
 *        for truncated rows their logits are stored for screen_rows.cu. If the screen does not
 *        determine the call, the full pass draws it; this is known before any token is scored.
 * COST   scoring: 2 D bytes a candidate and a chain of D / 16 wgmmas.
 * MAP    splitting: one CTA a draw (screen_split.cuh). Scoring: one CTA a multiprocessor
 *        (screen_score.cuh).
 */
#include "cuda/fused/screen/gathered_product.cuh"
#include "cuda/fused/screen/screen_refine.cuh"
#include "cuda/fused/screen/screen_score.cuh"
#include "cuda/fused/screen/screen_split.cuh"

/* Two CTAs fit a multiprocessor, so that one fits beside those of the launch before. */
#define KERNEL(name, kind)                                                                         \
    extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_SPLIT_THREADS, 2)                     \
        gumbel_split_rows##name(const __grid_constant__ screen_call<kind> s)                       \
    {                                                                                              \
        split_row(s);                                                                              \
    }
KERNEL(, CUDA_SCREEN_PLAIN)
KERNEL(_any, CUDA_SCREEN_ANY)
KERNEL(_truncated, CUDA_SCREEN_TRUNCATED)
KERNEL(_nested, CUDA_SCREEN_NESTED)
KERNEL(_nested_any, CUDA_SCREEN_NESTED_ANY)
KERNEL(_nested_truncated, CUDA_SCREEN_NESTED_TRUNCATED)
#undef KERNEL

/* Scoring reads no copy, so these kernels serve both formats. CUDA_SCREEN_ANY serves plain calls,
 * too: no tile waits for its code. */
#define KERNEL(dtype, half, kind)                                                                  \
    extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_SCORE_THREADS)                        \
        gumbel_score_rows_##dtype(const __grid_constant__ screen_call<kind> s)                     \
    {                                                                                              \
        run_scoring<gathered_product<half>>(s);                                                    \
    }
KERNEL(bf16, false, CUDA_SCREEN_ANY)
KERNEL(f16, true, CUDA_SCREEN_ANY)
KERNEL(bf16_truncated, false, CUDA_SCREEN_TRUNCATED)
KERNEL(f16_truncated, true, CUDA_SCREEN_TRUNCATED)

extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_REFINE_THREADS, CUDA_SCREEN_REFINE_CTAS)
    gumbel_refine_rows(const __grid_constant__ screen_call<CUDA_SCREEN_NESTED> s)
{
    run_refining(s);
}
