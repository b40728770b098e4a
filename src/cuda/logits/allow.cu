/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   converts each row's list of allowed tokens to a mask, and intersects it with the caller's
 *        mask. An empty list allows every token.
 * COST   reads a row's list once per 16384 tokens of the vocabulary, and writes a bit a token.
 * MAP    a CTA takes a tile of a row's tokens.
 * SMEM   the tile's bits, 2 KB.
 * SYNC   all threads wait until the bits are cleared, then set bits by atomics, and wait until all
 *        are set.
 */
#include "cuda/common/allowed_mask.cuh"
#include "cuda/common/cuda_params.h"
#include "cuda/common/ptx.cuh"

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_allow_tokens(const __grid_constant__ cuda_allow_params p)
{
    __shared__ uint32_t bits[kMaskTileWords];
    const gumbel_problem &q = p.problem;
    const int64_t b = blockIdx.x / p.tiles, tile = blockIdx.x % p.tiles;
    ptx_wait_for_launch();
    ptx_allow_launch();
    make_mask_tile<CUDA_THREADS>(q, b, tile, p.masked ? gumbel_problem_mask(&q, b) : nullptr, bits,
                                 p.allowed + b * p.words, p.words);
}
