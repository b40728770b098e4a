/* SPDX-License-Identifier: Apache-2.0
 *
 * The full pass after a draw with a screen, as fused_fallback_sm90.cu on Hopper: the host always
 * launches it, and every CTA exits at once if the screen determined the call. Rows may have masks.
 * CTAs merge their best tokens and flags into the words of the draws, which the first launch of the
 * call has cleared, and the last CTA writes the outputs, so that no other launch must follow.
 */
#include "cuda/fused/portable/fused_sm80.cuh"
#include "cuda/fused/tile/finish_sm90.cuh"
#include "cuda/policy/screen_policy.h"

namespace
{

/* A call whose outputs are written by the CTA that is number `last` of those that end. */
struct merged_call {
    cuda_screen_state *state;
    uint32_t last;

    /* Sets the tokens before `end` that the rows' masks do not allow to -inf; a rolled loop, one
     * group a turn. */
    template <int n>
    __device__ __forceinline__ void exclude_masked(const sm80_epilogue<n> &warp,
                                                   float (&y)[n / 8][8], int64_t end) const
    {
        const gumbel_problem &q = warp.p.problem;
        if (!(q.features & GUMBEL_FEATURE_MASK))
            return;
#pragma unroll 1
        for (int j = 0; j < n / 8; j++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int column = 8 * j + 2 * (warp.lane & 3) + c;
                const int32_t *mask = column < warp.columns && warp.token < end
                                          ? gumbel_problem_mask(&q, warp.first_row + column)
                                          : NULL;
                const uint32_t allowed =
                    mask ? (uint32_t)__ldg(mask + warp.token / 32) >> warp.token % 32 : ~0u;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!(allowed >> i & 1))
                        y[0][2 * i + c] = -INFINITY;
            }
            rotate_groups<1>(y);
        }
    }

    template <int n>
    __device__ __forceinline__ void write(const cuda_params &p, const cta_state &t) const
    {
        const int samples = p.problem.sampling.num_samples, i = threadIdx.x;
        const bool is_draw = i < (int)p.problem.batch * samples;
        if (is_draw) {
            unsigned long long best = 0;
            for (int warp = 0; warp < kWarps; warp++)
                best = max(best, t.keys[warp * n * samples + i]);
            merge_cleared_draw(p, i, best, t.flags[i]);
        }
        __syncthreads(); /* all draws of this CTA are merged */
        if (i == 0)
            t.raised[0] = ptx_atomic_count(&state->ended) + 1 == last;
        __syncthreads();
        if (t.raised[0] && is_draw)
            write_best(p, i);
    }
};

} // namespace

#define KERNEL(n, dtype, half)                                                                     \
    extern "C" __global__ void __launch_bounds__(kThreads, CUDA_SM80_CTAS(n))                      \
        gumbel_fallback_sm80_##dtype##_##n(const __grid_constant__ cuda_params params,             \
                                           cuda_screen_state *state, uint32_t last)                \
    {                                                                                              \
        ptx_wait_for_launch();                                                                     \
        if (__ldcg(&state->again))                                                                 \
            run_fused_sm80<n, product_16bit<half>>(params, merged_call{state, last});              \
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, bf16, false)                                                                         \
    KERNEL(n, f16, true)
KERNELS(8)
KERNELS(16)
KERNELS(32)
