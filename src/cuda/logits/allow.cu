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
#include "core/row.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/ptx.cuh"
#include "cuda/policy/cuda_policy.h"

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_allow_tokens(const __grid_constant__ cuda_allow_params p)
{
    __shared__ uint32_t bits[CUDA_HISTORY_TILE / 32];
    const gumbel_problem &q = p.problem;
    const gumbel_token_lists &lists = q.transforms.allowed;
    const int64_t b = blockIdx.x / p.tiles, begin = blockIdx.x % p.tiles * CUDA_HISTORY_TILE;
    const int64_t first = CUDA_ALLOWED_ORIGIN(q.first_token) + begin; /* token of bit 0 */
    ptx_wait_for_launch();
    ptx_allow_launch();
    const int64_t list_row = gumbel_problem_list_of_row(&q, b);
    const int64_t list = lists.offsets[list_row], end = lists.offsets[list_row + 1];
    for (int w = threadIdx.x; w < CUDA_HISTORY_TILE / 32; w += CUDA_THREADS)
        bits[w] = list < end ? 0 : ~0u;
    __syncthreads();
    for (int64_t i = list + threadIdx.x; i < end; i += CUDA_THREADS) {
        int64_t at = lists.ids[i] - first;
        if (at >= 0 && at < CUDA_HISTORY_TILE)
            atomicOr(&bits[at / 32], 1u << (at % 32));
    }
    __syncthreads();
    const int32_t *mask = p.masked ? gumbel_problem_mask(&q, b) + first / 32 : nullptr;
    for (int w = threadIdx.x; w < CUDA_HISTORY_TILE / 32 && begin / 32 + w < p.words;
         w += CUDA_THREADS)
        p.allowed[b * p.words + begin / 32 + w] = bits[w] & (mask ? (uint32_t)mask[w] : ~0u);
}
