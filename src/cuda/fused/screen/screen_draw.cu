/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the first pass of a draw with a screen on Hopper: computes for each token and row an
 *        interval that contains the logit of the full product, from the bytes of a screen and two
 *        planes of the hidden state (docs/maths.md, section 14). A token whose upper bound cannot
 *        reach the row's threshold with any noise is dropped; the others go to a list. The
 *        threshold of a truncated row has no noise (screen_thresholds.cuh).
 * COST   V D bytes, read once, or V D / 2 of high nibbles; 4 V D B byte operations on the tensor
 *        cores.
 * MAP    as fused_sm90.cuh in its ping-pong schedule: a persistent CTA a multiprocessor, two
 *        consumers of one warpgroup each, three service warps, one producer thread. A tile is 128
 *        rows of the screen by n columns: column 2 b is the upper plane of row b, 2 b + 1 the lower
 *        one, so that a thread holds both sums of its two neighbouring tokens of a row. Row
 *        16 w + 8 f + g of the operand is token 16 w + 2 g + f.
 * SMEM   a ring of stages, each 128 x 128 bytes or nibbles of the screen and n x 128 bytes of the
 *        planes, copied as they lie in memory; then screen_shared.cuh.
 * SYNC   as fused_sm90.cuh: full and empty for stages; served, drawn and multiplied for consumers.
 *        The kernel starts while the launch before it ends, and prefetches its first stages until
 *        then. By coarse bounds, and for truncated rows, a CTA waits in its first tile for
 *        thresholds that other CTAs publish, with a limit: without them more tokens pass, or the
 *        full pass draws.
 * NUMERICS  sums of integers are exact; an interval holds for any order of the full product's sums.
 */
#include "cuda/fused/screen/screen_consume.cuh"
#include "cuda/fused/screen/screen_multiply.cuh"

#define KERNEL(n, name, kind)                                                                      \
    extern "C" __global__ void __launch_bounds__(CUDA_SM90_THREADS, 1)                             \
        gumbel_screen_rows_##n##name(const __grid_constant__ screen_call<kind> s)                  \
    {                                                                                              \
        run_screen_draw<n, screen_wgmma_ring>(s);                                                  \
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, , CUDA_SCREEN_PLAIN)                                                                 \
    KERNEL(n, _any, CUDA_SCREEN_ANY)                                                               \
    KERNEL(n, _truncated, CUDA_SCREEN_TRUNCATED)                                                   \
    KERNEL(n, _nested_any, CUDA_SCREEN_NESTED_ANY)                                                 \
    KERNEL(n, _nested_truncated, CUDA_SCREEN_NESTED_TRUNCATED)
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNELS(64)
KERNELS(128)
/* Of up to CUDA_SCREEN_COARSE_DRAWS draws. */
KERNEL(8, _nested, CUDA_SCREEN_NESTED)
KERNEL(16, _nested, CUDA_SCREEN_NESTED)
KERNEL(32, _nested, CUDA_SCREEN_NESTED)
KERNEL(64, _nested, CUDA_SCREEN_NESTED)
