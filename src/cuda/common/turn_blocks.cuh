/* SPDX-License-Identifier: Apache-2.0
 *
 * Block noise for a warp that reads a row in turns of 128 tokens, four a lane. A turn has two
 * blocks, so one Philox call by each of 32 lanes covers 16 turns. Also finds which tokens may win.
 */
#ifndef GUMBEL_CUDA_TURN_BLOCKS_CUH
#define GUMBEL_CUDA_TURN_BLOCKS_CUH

#include "cuda/common/draw.cuh"

namespace
{

/* Turns of 128 tokens whose block noise a warp holds at once. */
constexpr int kTurns = 16;

/* The block of a lane: lanes 0 to 15 hold the first block of turn lane % 16, the others the
 * second. */
struct turn_blocks {
    uint32_t first; /* token of the lane's block */
    draw_block block;
    float reach; /* packed */

    /* The blocks of turns that begin at `token`, a multiple of 64, `stride` tokens apart. */
    static __device__ __forceinline__ turn_blocks from_philox(const draw_philox &philox,
                                                              uint32_t token, uint32_t stride)
    {
        const int lane = threadIdx.x % 32;
        turn_blocks own;
        own.first = token + lane % kTurns * stride + lane / kTurns * GUMBEL_BLOCK;
        own.block = draw_block_of(philox, own.first);
        own.reach = draw_pack_reach(draw_reach(false, own.block.r), own.block.max_noise_index());
        return own;
    }

    __device__ __forceinline__ uint32_t most_likely() const
    {
        return first + block.max_noise_index();
    }

    /* Returns `own` of the lane that holds the block of this lane's four tokens in a turn. All
     * lanes of the warp must call it. */
    template <class T> static __device__ __forceinline__ T of_turn(T own, int turn)
    {
        return __shfl_sync(~0u, own, turn % kTurns + threadIdx.x % 32 / kTurns * kTurns);
    }

    __device__ __forceinline__ float reach_of(int turn) const { return of_turn(reach, turn); }
};

/* A bit for each of the four tokens from `token` on, with transformed logits z: 1 if its score may
 * reach the threshold, by the packed reach of its block and by its own random word. */
__device__ __forceinline__ uint32_t find_winners(const draw_philox &philox, uint32_t token,
                                                 const float (&z)[4], float reach, float threshold)
{
    const float bound = draw_bound(threshold, reach), least = draw_min_exponential_of_reach(reach);
    uint32_t may = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        may |= (uint32_t)(z[i] > -INFINITY && draw_passes_bound(z[i], bound)) << i;
    if (!may)
        return 0;
    const uint4 words = draw_philox_words(philox, token / 4, 0);
    const float offset = draw_filter_offset(threshold);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const bool is_j = (token + i) % GUMBEL_BLOCK == draw_place_of_reach(reach);
        if (!is_j && !draw_passes_filter(z[i], least, draw_select_word(words, i), offset))
            may &= ~(1u << i);
    }
    return may;
}

} // namespace

#endif
