/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the ends of a screened draw on Hopper: before it, hidden states as planes; behind it, the
 *        tokens that can win scored by the full product, and the outputs. Or the full pass, where
 *        the screen does not tell: the last launch knows which before it begins, so that no launch
 *        stands behind it that would mostly end at once.
 * COST   of scoring, 2 D bytes a candidate and a chain of D / 16 wgmmas; of the full pass,
 *        fused_sm90.cuh.
 * MAP    splitting: a CTA a row (screen_split.cuh). Scoring: screen_score.cuh, by the first
 *        warpgroup of CTAs that are those of the full pass.
 * SYNC   the launch before has ended when a CTA asks what it is to do, so that all are told the
 *        same.
 */
#include "cuda/fused/hopper/fused_sm90.cuh"
#include "cuda/fused/screen/screen_score.cuh"
#include "cuda/fused/screen/screen_split.cuh"

namespace
{

static_assert(sizeof(split_shared) <= CUDA_SCREEN_SPLIT_BYTES, "as the launch has it");
static_assert(CUDA_SCREEN_SCORE_BYTES <= CUDA_SM90_SHARED_BYTES, "as the launch has it");

/* A row's planes; the words of its draw are cleared with them, and what the others tell. */
__device__ __forceinline__ void split_row(const cuda_screen_params &s)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    split_shared &shared = *(split_shared *)shared_memory;
    const gumbel_problem &q = s.call.problem;
    const int row = blockIdx.x;
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (row == 0 && threadIdx.x == 0)
        *s.state = {};
    if (row < s.draws && threadIdx.x < CUDA_FLOOR_WORDS)
        s.call.shared_floors[CUDA_FLOOR_WORDS * row + threadIdx.x] = 0;
    const row_split own(s, shared, row);
    if (row >= s.draws || !gumbel_problem_row_lives(&q, row_of_draw(s, row))) {
        if (threadIdx.x < kSplitThreads)
            own.clear();
        return;
    }
    gumbel_screen_reach reach = {};
    if (threadIdx.x < kSplitThreads) {
        if (s.spread)
            own.spread();
        reach = own.split();
    } else
        own.look_at_header();
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    if (!shared.fits)
        reach.unit = __uint_as_float(0x7fc00000);
    s.reaches[row] = reach;
}

/* Score what is listed, or draw the whole call anew. */
template <int n, bool half>
__device__ __forceinline__ void end_screened(const cuda_screen_params &s,
                                             const sm90_spread_call &whole,
                                             const CUtensorMap *weight, const CUtensorMap *hidden)
{
    ptx_wait_for_launch();
    if (__ldcg(&s.state->again)) {
        if (blockIdx.x < whole.parts)
            fused<n, half>(whole, weight, hidden);
        return;
    }
    ptx_allow_launch();
    if (threadIdx.x < CUDA_SCREEN_SCORE_THREADS)
        score<half>(s);
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_SPLIT_THREADS, 1)
    gumbel_split_rows(const __grid_constant__ cuda_screen_params s)
{
    split_row(s);
}

#define KERNEL(n, dtype, half)                                                                     \
    extern "C" __global__ void __launch_bounds__(CUDA_SM90_THREADS, 1)                             \
        gumbel_score_rows_##dtype##_##n(const __grid_constant__ cuda_screen_params s,              \
                                        const __grid_constant__ sm90_spread_call whole,            \
                                        const __grid_constant__ CUtensorMap weight,                \
                                        const __grid_constant__ CUtensorMap hidden)                \
    {                                                                                              \
        end_screened<n, half>(s, whole, &weight, &hidden);                                         \
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, bf16, false)                                                                         \
    KERNEL(n, f16, true)
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNELS(64)
