/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   writes the noise of a later step to memory (eq. 5, 6).
 * COST   4 bytes a token; ten Philox rounds every four tokens, a Philox block a thread and tile
 *        for the blocks of 64, and two logarithms a token, which are the limit: about 60
 *        instructions.
 * MAP    a CTA fills tiles of 4096 tokens of one draw each, in turn; a thread fills the four
 *        tokens of a Philox block at a time.
 * NUMERICS  noise.h: the bits that every draw uses.
 */
#include "core/row.h"
#include "cuda/common/turn_blocks.cuh"
#include "cuda/policy/cuda_policy.h"

namespace
{

constexpr int kThreads = CUDA_THREADS, kTurn = 4 * kThreads;
static_assert(CUDA_NOISE_TILE / kTurn <= kTurns, "one turn covers all blocks");

/* The noise of the four tokens from `token` on. */
__device__ __forceinline__ float4 make_quad(const draw_philox &philox, gumbel_block_noise block,
                                            uint32_t token)
{
    const uint4 r = draw_philox_words(philox, token / 4, 0);
    return {gumbel_noise_of_word(block, token, r.x), gumbel_noise_of_word(block, token + 1, r.y),
            gumbel_noise_of_word(block, token + 2, r.z),
            gumbel_noise_of_word(block, token + 3, r.w)};
}

/* Stores the noise of the tokens among `token` .. + 3 that the row holds; `out` is the address of
 * token 0. */
__device__ __forceinline__ void store_noise(float *out, int64_t token, int64_t first, int64_t end,
                                            float4 g)
{
    if (token >= first && token + 4 <= end && (uintptr_t)(out + token) % sizeof g == 0) {
        *(float4 *)(out + token) = g;
        return;
    }
    const float each[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (token + i >= first && token + i < end)
            out[token + i] = each[i];
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_make_noise(const __grid_constant__ cuda_noise_params p)
{
    const gumbel_problem &q = p.problem;
    int samples = q.sampling.num_samples;
    int64_t items = q.batch * samples * p.tiles, end = q.first_token + q.vocab;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int64_t draw = item / p.tiles;
        int64_t token =
            q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + item % p.tiles * CUDA_NOISE_TILE;
        int64_t last = token + CUDA_NOISE_TILE < end ? token + CUDA_NOISE_TILE : end;
        float *out = p.noise + draw * p.stride - q.first_token;
        if (!gumbel_problem_row_is_live(&q, draw / samples))
            continue;
        gumbel_stream stream = gumbel_problem_row(&q, draw / samples).stream;
        stream.sample += (uint32_t)(draw % samples);
        const draw_philox philox = draw_philox_of(stream);
        const turn_blocks blocks =
            turn_blocks::from_philox(philox, (uint32_t)(token + threadIdx.x / 32 * 128), kTurn);
        const gumbel_block_noise own = gumbel_block_noise_of(blocks.block.r, blocks.block.r2);
        token += 4 * threadIdx.x;
#pragma unroll 1
        for (int turn = 0; turn < CUDA_NOISE_TILE / kTurn; turn++, token += kTurn) {
            const gumbel_block_noise block = {turn_blocks::of_turn(own.least, turn),
                                              turn_blocks::of_turn(own.place, turn)};
            if (token < last)
                store_noise(out, token, q.first_token, end,
                            make_quad(philox, block, (uint32_t)token));
        }
    }
}
