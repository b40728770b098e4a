/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the ends of a screened draw on Hopper: before it, hidden states as planes; behind it, the
 *        tokens that can win scored by the full product, and the outputs, or, where rows are cut,
 *        the logits of those that can matter, from which screen_rows.cu draws. A call that the
 *        screen does not tell is left to the full pass, which is known before any is scored.
 * COST   of scoring, 2 D bytes a candidate and a chain of D / 16 wgmmas.
 * MAP    splitting: a CTA a draw (screen_split.cuh). Scoring: screen_score.cuh, by as many CTAs as
 *        there are multiprocessors.
 */
#include "cuda/fused/screen/screen_score.cuh"
#include "cuda/fused/screen/screen_split.cuh"

namespace
{

static_assert(sizeof(split_shared) <= CUDA_SCREEN_SPLIT_BYTES, "as the launch has it");

/* A row's planes; the words of its draw are cleared with them, and what the others tell. */
template <class call> __device__ __forceinline__ void split_row(const call &s)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    split_shared &shared = *(split_shared *)shared_memory;
    const int row = blockIdx.x;
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (row == 0 && threadIdx.x == 0)
        *s.state = {};
    if (row < s.draws && threadIdx.x < CUDA_THRESHOLD_WORDS)
        s.call.row_thresholds[CUDA_THRESHOLD_WORDS * row + threadIdx.x] = 0;
    if (call::cuts && row < s.draws)
        for (int tile = threadIdx.x; tile < s.call.tiles; tile += CUDA_SCREEN_SPLIT_THREADS)
            s.peaks[(int64_t)row * s.call.tiles + tile] = __uint_as_float(~0u); /* the least */
    const row_split<call> own(s, shared, row);
    if (row >= s.draws || !s.lives(row)) {
        if (threadIdx.x < kSplitThreads)
            own.clear();
        return;
    }
    gumbel_screen_reach reach = {};
    if (threadIdx.x < kSplitThreads) {
        if (call::sampled && s.spread)
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

} // namespace

/* Two CTAs fit a multiprocessor, so that one fits beside those of the launch before. */
#define KERNEL(name, kind)                                                                         \
    extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_SPLIT_THREADS, 2)                     \
        gumbel_split_rows##name(const __grid_constant__ screen_call<kind> s)                       \
    {                                                                                              \
        split_row(s);                                                                              \
    }
KERNEL(, CUDA_SCREEN_PLAIN)
KERNEL(_any, CUDA_SCREEN_ANY)
KERNEL(_cut, CUDA_SCREEN_TRUNCATED)
#undef KERNEL

/* Those of CUDA_SCREEN_ANY serve plain calls, too: no tile waits for this. */
#define KERNEL(dtype, half, kind)                                                                  \
    extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_SCORE_THREADS)                        \
        gumbel_score_rows_##dtype(const __grid_constant__ screen_call<kind> s)                     \
    {                                                                                              \
        score<half>(s);                                                                            \
    }
KERNEL(bf16, false, CUDA_SCREEN_ANY)
KERNEL(f16, true, CUDA_SCREEN_ANY)
KERNEL(bf16_cut, false, CUDA_SCREEN_TRUNCATED)
KERNEL(f16_cut, true, CUDA_SCREEN_TRUNCATED)
