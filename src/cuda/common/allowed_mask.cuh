/* SPDX-License-Identifier: Apache-2.0
 *
 * The mask of a row's list of allowed tokens, a tile of the vocabulary at a time.
 */
#ifndef GUMBEL_CUDA_ALLOWED_MASK_CUH
#define GUMBEL_CUDA_ALLOWED_MASK_CUH

#include "core/row.h"
#include "cuda/policy/cuda_policy.h"

namespace
{

constexpr int kMaskTileWords = CUDA_HISTORY_TILE / 32;

/* Writes tile number `tile` of row b's mask to `to` [words]; bit 0 of to[0] is token
 * CUDA_ALLOWED_ORIGIN(). An empty list allows every token. `mask`: the words of the caller's mask
 * from token 0 on; NULL: none. For a CTA of `threads`; `bits` is in shared memory. Begins with
 * writes to `bits`. */
template <int threads>
__device__ __forceinline__ void make_mask_tile(const gumbel_problem &q, int64_t b, int64_t tile,
                                               const int32_t *mask, uint32_t *bits, uint32_t *to,
                                               int64_t words)
{
    const gumbel_token_lists &lists = q.transforms.allowed;
    const int64_t begin = tile * CUDA_HISTORY_TILE;
    const int64_t first = CUDA_ALLOWED_ORIGIN(q.first_token) + begin; /* token of bit 0 */
    const int64_t list_row = gumbel_problem_list_of_row(&q, b);
    const int64_t list = lists.offsets[list_row], end = lists.offsets[list_row + 1];
    for (int w = threadIdx.x; w < kMaskTileWords; w += threads)
        bits[w] = list < end ? 0 : ~0u;
    __syncthreads();
    for (int64_t i = list + threadIdx.x; i < end; i += threads) {
        int64_t at = lists.ids[i] - first;
        if (at >= 0 && at < CUDA_HISTORY_TILE)
            atomicOr(&bits[at / 32], 1u << (at % 32));
    }
    __syncthreads();
    for (int w = threadIdx.x; w < kMaskTileWords && begin / 32 + w < words; w += threads)
        to[begin / 32 + w] = bits[w] & (mask ? (uint32_t)mask[first / 32 + w] : ~0u);
}

} // namespace

#endif
