/* SPDX-License-Identifier: Apache-2.0
 *
 * The noise of a tile for the Hopper kernel: for each draw the words of the blocks of 64 tokens
 * that the tile touches, one call of Philox where tiles begin at multiples of 128. They tell how
 * far the noise of a block reaches, by which it is passed over, and which token has the most of it.
 */
#ifndef GUMBEL_CUDA_NOISE_SM90_CUH
#define GUMBEL_CUDA_NOISE_SM90_CUH

#include "cuda/common/draw.cuh"
#include "cuda/fused/tile/thresholds_sm90.cuh"

namespace
{

/* Words of a draw's blocks, from the one that holds token `first` of a tile on. */
__device__ __forceinline__ void words_of_blocks(const sm90_draw &draw, uint32_t domain,
                                                uint32_t first,
                                                draw_block (&words)[CUDA_SM90_BLOCKS])
{
    const draw_philox f = draw_philox_of({draw.seed, draw.position, draw.sample, domain});
    const uint32_t count = first / (2 * GUMBEL_BLOCK);
    uint4 own = draw_philox_words(f, count, GUMBEL_BLOCK_DOMAIN), next = own;
    if (first % (2 * GUMBEL_BLOCK) != 0)
        next = draw_philox_words(f, count + 1, GUMBEL_BLOCK_DOMAIN);
    words[0] = draw_block_in(own, first);
    words[1] = draw_block_in(first & GUMBEL_BLOCK ? next : own, first + GUMBEL_BLOCK);
    words[2] = draw_block_in(next, first);
}

/* In the first tile, which has no thresholds, a block's word of reach and the place of its token of
 * most noise are one: the six bits of the place instead of the lowest of the word. */
__device__ __forceinline__ uint32_t first_word_of(const draw_block &block)
{
    return (block.r & ~(GUMBEL_BLOCK - 1u)) | block.max_noise_index();
}

/* No larger than the block's first word, and no smaller. */
__device__ __forceinline__ uint32_t word_below(uint32_t first_word)
{
    return first_word & ~(GUMBEL_BLOCK - 1u);
}
__device__ __forceinline__ uint32_t word_above(uint32_t first_word)
{
    return first_word | (GUMBEL_BLOCK - 1u);
}

/* Reaches of a tile's blocks, of the draws that belong to a thread which serves. */
template <int n, class call> struct tile_reaches {
    float of[thresholds<n, call>::template turns<SM90_SERVE_THREADS>][CUDA_SM90_BLOCKS];

    /* From token `first` on. */
    __device__ __forceinline__ tile_reaches(const call &p, const shared_sm90<n> &shared,
                                            const thresholds<n, call> &all, int thread,
                                            uint32_t first)
    {
        all.template each<SM90_SERVE_THREADS>(thread, [&](int i, int k) {
            draw_block words[CUDA_SM90_BLOCKS];
            words_of_blocks(shared.draws[i], p.problem.sampling.domain, first, words);
            for (int b = 0; b < CUDA_SM90_BLOCKS; b++)
                of[k][b] = draw_reach(shared.draws[i].greedy, words[b].r);
        });
    }
};

} // namespace

#endif
