/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the noise of a coming step, into memory (eq. 5, 6).
 * COST   4 bytes a token written; a Philox block of ten rounds every four tokens and two logarithms
 *        a token, which bound it: about 60 instructions.
 * MAP    a CTA makes a piece of 4096 tokens of one draw, then the next that is its turn; a thread
 *        the four tokens of a Philox block at a time.
 * NUMERICS  noise.h: the bits that every draw uses.
 */
#include "core/row.h"
#include "cuda/common/cuda_params.h"
#include "cuda/policy/cuda_policy.h"

namespace
{

constexpr int kThreads = CUDA_THREADS;

/* The noise of tokens 4 * block .. + 3. */
__device__ __forceinline__ float4 make_block(gumbel_stream stream, uint32_t block)
{
    uint32_t r[4];
    float g[4];
    gumbel_words(stream, block, 0, r);
#pragma unroll
    for (int i = 0; i < 4; i++)
        g[i] = gumbel_of_word(r[i]);
    if (min(min(r[0], r[1]), min(r[2], r[3])) < GUMBEL_TAIL_WORDS)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (r[i] < GUMBEL_TAIL_WORDS)
                g[i] = gumbel_of_token(stream, 4 * block + i);
    return {g[0], g[1], g[2], g[3]};
}

/* Store what of tokens `token` .. + 3 the row holds; `out` is where token 0 would be. */
__device__ __forceinline__ void store(float *out, int64_t token, int64_t first, int64_t end,
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
    int64_t items = q.batch * samples * p.pieces, end = q.first_token + q.vocab;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int64_t draw = item / p.pieces;
        int64_t token = q.first_token / 4 * 4 + item % p.pieces * CUDA_NOISE_PIECE;
        int64_t last = token + CUDA_NOISE_PIECE < end ? token + CUDA_NOISE_PIECE : end;
        float *out = p.noise + draw * p.stride - q.first_token;
        if (!gumbel_problem_row_lives(&q, draw / samples))
            continue;
        gumbel_stream stream = gumbel_problem_row(&q, draw / samples).stream;
        stream.sample += (uint32_t)(draw % samples);
        for (token += 4 * threadIdx.x; token < last; token += 4 * kThreads)
            store(out, token, q.first_token, end, make_block(stream, (uint32_t)(token / 4)));
    }
}
