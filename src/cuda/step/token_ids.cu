/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   draws from a head over a subset of the vocabulary: writes the noise of a table of token
 *        ids, and a mask of the valid ones, before the draw; maps rows to ids in its outputs.
 * COST   noise: 8 bytes a row and draw; two Philox blocks and two logarithms a token, about 250
 *        instructions, as neighbours in the table rarely share random words. Map: a read and a
 *        write of each output that holds tokens.
 * MAP    noise: a CTA fills tiles of CUDA_TABLE_TILE rows of one draw each, a thread one row at a
 *        time; the CTAs of draw 0 also write the mask, a warp a word. Map: a thread an element; a
 *        CTA a row of kept_ids.
 * NUMERICS  noise.h: the bits that every draw uses.
 */
#include "core/row.h"
#include "cuda/common/draw.cuh"
#include "cuda/policy/cuda_policy.h"

namespace
{

constexpr int kTableThreads = CUDA_THREADS;
static_assert(CUDA_TABLE_TILE % kTableThreads == 0, "every warp of a CTA takes part in a ballot");

/* The noise of an id that is no token's: finite, and lower than any other. */
constexpr float kLowestNoise = -0x1.fffffep127f;

/* Stores the bits of 32 rows, from row i - lane on, whether their ids are tokens'. */
__device__ __forceinline__ void store_mask_word(uint32_t *mask, int64_t i, int64_t end,
                                                bool is_token)
{
    const uint32_t word = __ballot_sync(0xffffffffu, is_token);
    if (threadIdx.x % 32 == 0 && i < end)
        mask[i / 32] = word;
}

/* Replaces the rows among `count` elements by ids; -1 stands for no token. */
__device__ __forceinline__ void replace_rows(const cuda_token_ids_params &p, int32_t *rows,
                                             int64_t first, int64_t count, int64_t step)
{
    for (int64_t i = first; i < count; i += step)
        if (rows[i] >= 0)
            rows[i] = p.ids[rows[i]];
}

} // namespace

extern "C" __global__ void __launch_bounds__(kTableThreads)
    gumbel_make_table_noise(const __grid_constant__ cuda_noise_params p)
{
    const gumbel_problem &q = p.problem;
    const int samples = q.sampling.num_samples;
    const int64_t items = q.batch * samples * p.tiles;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const int64_t draw = item / p.tiles, row = draw / samples;
        const int64_t first = item % p.tiles * CUDA_TABLE_TILE;
        const bool is_live = gumbel_problem_row_is_live(&q, row);
        gumbel_stream stream = gumbel_problem_row(&q, is_live ? row : 0).stream;
        stream.sample += (uint32_t)(draw % samples);
#pragma unroll 1
        for (int turn = 0; turn < CUDA_TABLE_TILE / kTableThreads; turn++) {
            const int64_t i = first + turn * kTableThreads + threadIdx.x;
            const int32_t id = i < q.vocab ? q.sampling.token_ids[i] : -1;
            const bool is_token = gumbel_is_token_id(id);
            if (p.mask && draw == 0)
                store_mask_word(p.mask, i, q.vocab, is_token);
            if (i < q.vocab && is_live)
                p.noise[draw * p.stride + i] =
                    is_token ? draw_token_noise(stream, (uint32_t)id) : kLowestNoise;
        }
    }
}

extern "C" __global__ void __launch_bounds__(kTableThreads)
    gumbel_replace_rows_by_ids(const __grid_constant__ cuda_token_ids_params p)
{
    const gumbel_output &out = p.output;
    const int64_t first = (int64_t)blockIdx.x * kTableThreads + threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * kTableThreads;
    replace_rows(p, out.tokens, first, p.batch * p.num_samples, step);
    if (out.top_ids)
        replace_rows(p, out.top_ids, first, p.batch * out.num_top, step);
    if (out.best_ids)
        replace_rows(p, out.best_ids, first, p.batch * out.num_best, step);
    for (int64_t b = blockIdx.x; b < p.batch && out.kept_ids; b += gridDim.x)
        if (out.kept[b] <= out.kept_capacity)
            replace_rows(p, out.kept_ids + b * out.kept_capacity, threadIdx.x, out.kept[b],
                         kTableThreads);
}
