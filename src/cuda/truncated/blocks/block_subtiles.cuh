/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists the tokens of a row with a z of at least `min_z`, by one CTA, after a product that has
 * stored only some subtiles of blocks. Code that runs once costs 5 to 6 cycles an
 * instruction, so its length determines the time: the CTA lists the stored subtiles, and each
 * thread takes quads of them. Logits are float32, aligned and not scaled.
 */
#ifndef GUMBEL_CUDA_BLOCK_SUBTILES_CUH
#define GUMBEL_CUDA_BLOCK_SUBTILES_CUH

#include "cuda/truncated/blocks/block_row.cuh"

namespace
{

constexpr int kBlockSubtiles = CUDA_SUBTILES, kSubtileQuads = CUDA_SUBTILE / 4;
/* Maximum number of subtiles that a CTA reads; a row seldom needs 1000. */
constexpr int kSubtilesMax = 4096;

/* Indices in the row of the subtiles to read, in the memory of bins. */
__device__ __forceinline__ uint16_t *selected_subtiles()
{
    return (uint16_t *)shared_state().scratch.high;
}
static_assert(kSubtilesMax * sizeof(uint16_t) <= offsetof(row_scratch, list),
              "bins have the memory");
static_assert(kTurnBlocks * kBlockSubtiles <= UINT16_MAX + 1, "indices of a turn fit");

/* The logits of row b from its first block on, as a product stores them. */
__device__ __forceinline__ const float *stored_row(int64_t b)
{
    return (const float *)get_row_origin(shared_state().call.problem, b) + row_blocks::start_of(0);
}

/* Selects the stored subtiles of this thread's blocks whose maximum reaches `min_z`. Subtiles
 * beyond kSubtilesMax are only counted. */
__device__ __forceinline__ void select_subtiles(const row_blocks &blocks,
                                                const loaded_blocks &loaded, float min_z)
{
    uint32_t selected = 0;
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        if (blocks.values.to_z(loaded.maxima.values[j]) >= min_z)
            selected |= loaded.subtiles[j] << kBlockSubtiles * j;
    uint32_t at = selected ? atomicAdd(&block_state().subtiles, __popc(selected)) : 0;
#pragma unroll 1
    for (; selected; selected &= selected - 1, at++) {
        const int own = __ffs(selected) - 1;
        if (at < kSubtilesMax)
            selected_subtiles()[at] =
                (uint16_t)(blocks.own_block(0, own / kBlockSubtiles) * kBlockSubtiles +
                           own % kBlockSubtiles);
    }
}

/* A bit for each of the four tokens from `place` on: 1 if its z is at least `min_z`. Tokens past
 * the end of the row have 0. */
__device__ __forceinline__ uint32_t find_reaching_tokens(const row_blocks &blocks, const float *row,
                                                         int place, float min_z)
{
    const int64_t remaining =
        shared_state().call.problem.end_token - row_blocks::start_of(0) - place;
    four l;
    if (is_rare(remaining < 4))
        l = load_any_quad(blocks.b, row_blocks::start_of(0) + place);
    else
        l = ((const quad<GUMBEL_FLOAT32> *)(row + place))->to_floats();
    uint32_t reach = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        reach |= (uint32_t)(blocks.values.to_z(l.v[i]) >= min_z) << i;
    return reach;
}

/* Offset in the row of quad `at` of the selected subtiles. */
__device__ __forceinline__ int place_of_quad_in_subtiles(int at)
{
    return 4 * (selected_subtiles()[at / kSubtileQuads] * kSubtileQuads + at % kSubtileQuads);
}

/* Lists the tokens of `all` selected quads with a z of at least `min_z`, after edits too. Returns
 * the largest y of this thread, which loads `ahead` quads at once. */
template <int ahead>
__device__ __forceinline__ float list_subtiles(const row_blocks &blocks, int all, float min_z)
{
    const bool edits = shared_state().call.problem.features & GUMBEL_FEATURE_TRANSFORMS;
    const float *row = stored_row(blocks.b);
    float largest = -INFINITY;
#pragma unroll 1
    for (int base = threadIdx.x; base < all; base += ahead * kThreads) {
        uint32_t reach = 0;
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const int at = base + i * kThreads;
            if (at < all)
                reach |= find_reaching_tokens(blocks, row, place_of_quad_in_subtiles(at), min_z)
                         << 4 * i;
        }
#pragma unroll 1
        for (; reach; reach &= reach - 1) {
            const int own = __ffs(reach) - 1;
            const int place = place_of_quad_in_subtiles(base + own / 4 * kThreads) + own % 4;
            const int token = (int)(row_blocks::start_of(0) + place);
            float y = row[place];
            if (edits)
                y = edit_token(token, y);
            const bool stays = blocks.values.to_z(y) >= min_z;
            const uint32_t at = ptx_atomic_count_if(stays, &shared_state().count);
            if (stays && at < kShortlist)
                shared_state().scratch.list[at] = {y, token};
            largest = fmaxf(largest, y);
        }
    }
    return largest;
}

/* For many quads, as in flat rows with min_p, where memory latency matters more than code size. */
__device__ __noinline__ float list_many_subtiles(row_blocks blocks, int all, float min_z)
{
    return list_subtiles<4>(blocks, all, min_z);
}

/* list_reaching() for blocks of one turn, which this thread has `loaded`. */
__device__ __forceinline__ void list_reaching_subtiles(const row_blocks &blocks,
                                                       const loaded_blocks &loaded, float min_z)
{
    block_scratch &x = block_state();
    select_subtiles(blocks, loaded, min_z);
    __syncthreads();
    if (is_rare(x.subtiles > kSubtilesMax) && threadIdx.x == 0)
        atomicAdd(&shared_state().count, kShortlist + 1);
    const int all = min((int)x.subtiles, kSubtilesMax) * kSubtileQuads;
    const float own = is_rare(all > 2 * kThreads) ? list_many_subtiles(blocks, all, min_z)
                                                  : list_subtiles<2>(blocks, all, min_z);
    const uint32_t key = __reduce_max_sync(~0u, gumbel_key_of_value(own));
    if (threadIdx.x % 32 == 0)
        atomicMax(&x.seen, key);
    __syncthreads();
}

} // namespace

#endif
