/* SPDX-License-Identifier: Apache-2.0
 *
 * All tokens of a row, whose y a CTA recomputes from the logits at each pass.
 */
#ifndef GUMBEL_CUDA_ROW_SOURCE_CUH
#define GUMBEL_CUDA_ROW_SOURCE_CUH

#include "cuda/truncated/row/truncated_row.cuh"

namespace
{

/* Blocks of 64 tokens that a warp loads at once. */
constexpr int kAhead = CUDA_TRUNCATED_AHEAD;
static_assert(kTruncatedTile == kWarps * kAhead * GUMBEL_BLOCK,
              "a warp loads its blocks of a tile at once");

/* All valid tokens of a row, recomputed at each pass. */
struct row_source {
    static constexpr bool is_row = true;
    const cuda_truncated_params &p;
    const truncated_row &row;
    staged_tile &staged;
    int64_t b;

    /* Calls f(tile) for the first token of each tile, after staging its edited y if needed. */
    template <class F> __device__ __forceinline__ void each_tile(F f) const
    {
        const gumbel_problem &q = p.problem;
        int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
        for (int64_t tile = begin; tile < q.end_token; tile += kTruncatedTile) {
            if (row.lists)
                stage_tile(p, row, b, tile, tile + kTruncatedTile, staged.stage, staged.y, false);
            f(tile);
        }
    }

    /* Calls f(block, low, high) for each block of 64 tokens of a tile, by a whole warp: y of tokens
     * lane and lane + 32 of the block, -inf for invalid tokens. A warp has neighbouring blocks, by
     * ascending ids, which follow those of lower warps. */
    template <class F> __device__ __forceinline__ void each_block_of_tile(int64_t tile, F f) const
    {
        const gumbel_problem &q = p.problem;
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        int64_t end = min(tile + kTruncatedTile, q.end_token);
        int64_t base = tile + warp * kAhead * GUMBEL_BLOCK;
        if (base >= end)
            return;
        float y[2 * kAhead];
#pragma unroll
        for (int i = 0; i < 2 * kAhead; i++) {
            int64_t token = base + 32 * i + lane;
            bool counts = token >= q.first_token && token < end;
            y[i] = !counts     ? -INFINITY
                   : row.lists ? staged.y[token - tile]
                               : raw_logit(q, b, token);
        }
#pragma unroll
        for (int i = 0; i < 2 * kAhead; i++) {
            int64_t token = base + 32 * i + lane;
            if (!row.lists && token >= q.first_token && token < end)
                y[i] = plain_y(p, row, token, y[i]);
        }
        for (int64_t block = base; block < min(base + kAhead * GUMBEL_BLOCK, end);
             block += GUMBEL_BLOCK) {
            f(block, y[0], y[1]);
#pragma unroll
            for (int i = 2; i < 2 * kAhead; i++)
                y[i - 2] = y[i];
        }
    }

    /* each_block_of_tile() for all tiles. */
    template <class F> __device__ __forceinline__ void each_block(F f) const
    {
        each_tile([&](int64_t tile) { each_block_of_tile(tile, f); });
    }

    /* Calls f(token, y) for each valid token, by any lane. */
    template <class F> __device__ __forceinline__ void each(F f) const
    {
        const gumbel_problem &q = p.problem;
        int lane = threadIdx.x % 32;
        each_block([&](int64_t block, float low, float high) {
#pragma unroll 1
            for (int half = 0; half < 2; half++) {
                int64_t token = block + 32 * half + lane;
                if (token >= q.first_token && token < q.end_token)
                    f((int32_t)token, half ? high : low);
            }
        });
    }
};

} // namespace

#endif
