/* SPDX-License-Identifier: Apache-2.0
 *
 * The full pass after a draw with a screen. The host always launches it, because it does not wait
 * to learn whether the screen determined the draw. `gumbel_fused_fallback_*` draws a plain call
 * anew; its samples have columns of their own and its rows may have masks.
 * `gumbel_store_fallback_*` serves truncated rows: it stores the logits of all rows. If the screen
 * determined all rows, every CTA reads one flag, or the flags of the rows, and exits.
 */
#include "cuda/fused/hopper/fused_sm90.cuh"

namespace
{

/* Whether any of the rows is a fallback row; every thread gets the answer. */
__device__ __forceinline__ bool any_fallback(int64_t batch, const int32_t *fallback_rows)
{
    bool found = false;
    for (int64_t b = threadIdx.x; b < batch; b += CUDA_SM90_THREADS)
        found |= __ldcg(&fallback_rows[b]) != 0;
    return __syncthreads_or(found);
}

} // namespace

#define KERNEL(n, dtype, half)                                                                     \
    extern "C" __global__ void __launch_bounds__(CUDA_SM90_THREADS, 1)                             \
        gumbel_fused_fallback_##dtype##_##n(const __grid_constant__ sm90_spread_call params,       \
                                            const __grid_constant__ CUtensorMap weight,            \
                                            const __grid_constant__ CUtensorMap hidden,            \
                                            const uint32_t *needs_full_pass)                       \
    {                                                                                              \
        ptx_wait_for_launch();                                                                     \
        if (__ldcg(needs_full_pass))                                                               \
            run_fused_draw<n, half>(params, &weight, &hidden);                                     \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(CUDA_SM90_THREADS, 1)                             \
        gumbel_store_fallback_##dtype##_##n(                                                       \
            const __grid_constant__ sm90_call<CUDA_SM90_STORED> params,                            \
            const __grid_constant__ CUtensorMap weight,                                            \
            const __grid_constant__ CUtensorMap hidden, const int32_t *fallback_rows)              \
    {                                                                                              \
        ptx_wait_for_launch();                                                                     \
        if (any_fallback(params.problem.batch, fallback_rows))                                     \
            run_fused_draw<n, half>(params, &weight, &hidden);                                     \
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, bf16, false)                                                                         \
    KERNEL(n, f16, true)
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNELS(64)
