/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the rules of a row keep a token, by what lies above it: its pivot. Floats are enough for
 * the mass of a nucleus, but for a few tokens beside the cut. And the blocks' noise by which tokens
 * above a pivot are passed over.
 */
#ifndef GUMBEL_CUDA_PIVOT_CUH
#define GUMBEL_CUDA_PIVOT_CUH

#include "maths/truncation.h"
#include "cuda/common/draw.cuh"
#include "cuda/common/widen.cuh"

namespace
{

/* What a sum of masses is off at most, relative to it: terms by 2^-17 where they are 85 below the
 * largest, which has no mass, and 2^-20 where they count; sums by 2^-24 a term of a thread's. The
 * rest is room for rows of a hundred times 150,000 tokens. */
constexpr float kUnsure = 0x1p-13f;

enum pivot_verdict { PIVOT_GOES, PIVOT_STAYS, PIVOT_UNSURE };

/* What lies above a pivot: how many tokens, and their mass and that of all, relative to the largest
 * value's. */
struct pivot_above {
    uint32_t count;
    float mass, all;

    static __device__ __forceinline__ pivot_above none() { return {0, 0.0f, 0.0f}; }

    /* About exp(v - largest). */
    static __device__ __forceinline__ float mass_of(float v, float largest)
    {
        return ptx_exp2((v - largest) * LOG2E);
    }
    __device__ __forceinline__ void join_warp()
    {
        count = __reduce_add_sync(~0u, count);
#pragma unroll
        for (int half = 16; half > 0; half /= 2) {
            mass += __shfl_xor_sync(~0u, mass, half);
            all += __shfl_xor_sync(~0u, all, half);
        }
    }
};

/* Turns of a warp, 128 tokens each, whose blocks its lanes know at once. */
constexpr int kTurns = 16;

/* A lane's part of what a warp knows of the noise of the blocks that it goes through: of turn lane %
 * 16 the first block or, in the upper lanes, the second. */
struct turn_blocks {
    uint32_t first; /* token of the lane's block */
    draw_block block;
    float reach; /* packed */

    /* The warp's turns begin at `token`, a multiple of 64, and `stride` tokens apart. */
    static __device__ __forceinline__ turn_blocks of(const draw_philox &philox, uint32_t token,
                                                     uint32_t stride)
    {
        const int lane = threadIdx.x % 32;
        turn_blocks own;
        own.first = token + lane % kTurns * stride + lane / kTurns * GUMBEL_BLOCK;
        own.block = draw_block_of(philox, own.first);
        own.reach = draw_pack_reach(draw_reach(false, own.block.r), own.block.place());
        return own;
    }

    __device__ __forceinline__ uint32_t most_likely() const { return first + block.place(); }

    /* The packed reach of the block that holds the lane's quad in a turn; by whole warps. */
    __device__ __forceinline__ float reach_of(int turn) const
    {
        return __shfl_sync(~0u, reach, turn % kTurns + threadIdx.x % 32 / kTurns * kTurns);
    }
};

/* Which of four neighbours from `token` on, of those z, may come to a threshold, by their block's
 * reach, packed, and by their own words, as bits. */
__device__ __forceinline__ uint32_t find_winners(const draw_philox &philox, uint32_t token,
                                                 const float (&z)[4], float reach, float threshold)
{
    const float bound = draw_bound(threshold, reach), least = draw_least_of_reach(reach);
    uint32_t may = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        may |= (uint32_t)(z[i] > -INFINITY && draw_passes(z[i], bound)) << i;
    if (!may)
        return 0;
    const uint4 words = draw_words(philox, token / 4, 0);
    const float offset = draw_offset(threshold);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const bool is_j = (token + i) % GUMBEL_BLOCK == draw_place_of_reach(reach);
        if (!is_j && !draw_screen(z[i], least, draw_word(words, i), offset))
            may &= ~(1u << i);
    }
    return may;
}

/* What becomes of the pivot: it must be one of the first top_k, and within top_p of all. */
__device__ __forceinline__ pivot_verdict judge_pivot(const gumbel_rules &rules,
                                                     const pivot_above &above)
{
    if (rules.top_k > 0 && above.count >= rules.top_k)
        return PIVOT_GOES;
    if (!(rules.top_p < 1.0f))
        return PIVOT_STAYS;
    const float needed = rules.top_p * above.all;
    return above.mass < needed * (1.0f - kUnsure)    ? PIVOT_STAYS
           : above.mass >= needed * (1.0f + kUnsure) ? PIVOT_GOES
                                                     : PIVOT_UNSURE;
}

} // namespace

#endif
