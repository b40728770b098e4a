/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokens of a row that reach a guess, by one CTA, where a product has stored strips of blocks
 * alone. What a row runs through once takes 5 to 6 cycles an instruction, warm or cold, so that all
 * that counts is how few there are: strips that are stored are put down one by one, and a thread
 * takes four of their tokens, whichever these are; logits are float32, aligned and not scaled.
 */
#ifndef GUMBEL_CUDA_REQUEST_BLOCK_SUBTILES_CUH
#define GUMBEL_CUDA_REQUEST_BLOCK_SUBTILES_CUH

#include "cuda/request/blocks/request_block_row.cuh"

namespace
{

constexpr int kBlockSubtiles = CUDA_REQUEST_SUBTILES, kSubtileQuads = CUDA_REQUEST_SUBTILE / 4;
/* Strips that a CTA looks into at most: a row seldom needs 1000. */
constexpr int kSubtilesMax = 4096;

/* Strips to look into, by their numbers in the row, in the memory of bins. */
__device__ __forceinline__ uint16_t *selected_subtiles()
{
    return (uint16_t *)shared_state().scratch.high;
}
static_assert(kSubtilesMax * sizeof(uint16_t) <= offsetof(row_scratch, list),
              "bins have the memory");
static_assert(kTurnBlocks * kBlockSubtiles <= UINT16_MAX + 1, "a turn's strips have such numbers");

/* The logits of row b, from its first block on, as a product stores them. */
__device__ __forceinline__ const float *stored_row(int64_t b)
{
    return (const float *)request_origin(shared_state().call.problem, b) + row_blocks::start_of(0);
}

/* Put down the strips that are stored of this thread's blocks whose z may be `least` or more; more
 * than fit are counted. */
__device__ __forceinline__ void select_subtiles(const row_blocks &blocks,
                                                const loaded_blocks &loaded, float least)
{
    uint32_t selected = 0;
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        if (blocks.values.to_z(loaded.maxima.values[j]) >= least)
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

/* Which of the four tokens from a place in the row on have a z of `least` or more, as bits; those
 * that do not count, which are the last ones, have none. */
__device__ __forceinline__ uint32_t find_reaching_tokens(const row_blocks &blocks, const float *row,
                                                         int place, float least)
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
        reach |= (uint32_t)(blocks.values.to_z(l.v[i]) >= least) << i;
    return reach;
}

/* Where in the row the `at`-th quad of the strips put down begins. */
__device__ __forceinline__ int place_of_quad_in_subtiles(int at)
{
    return 4 * (selected_subtiles()[at / kSubtileQuads] * kSubtileQuads + at % kSubtileQuads);
}

/* List the tokens of the `all` quads put down whose z is `least` or more, after edits, too; the
 * largest y of this thread's, which asks for `ahead` quads side by side. */
template <int ahead>
__device__ __forceinline__ float list_subtiles(const row_blocks &blocks, int all, float least)
{
    const bool edits = shared_state().call.problem.request & GUMBEL_REQUEST_TRANSFORMS;
    const float *row = stored_row(blocks.b);
    float largest = -INFINITY;
#pragma unroll 1
    for (int base = threadIdx.x; base < all; base += ahead * kThreads) {
        uint32_t reach = 0;
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const int at = base + i * kThreads;
            if (at < all)
                reach |= find_reaching_tokens(blocks, row, place_of_quad_in_subtiles(at), least)
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
            const bool stays = blocks.values.to_z(y) >= least;
            const uint32_t at = ptx_atomic_count_if(stays, &shared_state().count);
            if (stays && at < kShortlist)
                shared_state().scratch.list[at] = {y, token};
            largest = fmaxf(largest, y);
        }
    }
    return largest;
}

/* Of many quads, as what min_p keeps of flat rows: each trip to memory counts then, not how much
 * code there is. */
__device__ __noinline__ float list_many_subtiles(row_blocks blocks, int all, float least)
{
    return list_subtiles<4>(blocks, all, least);
}

/* As look(), of blocks that are one turn, of which this thread knows `some`. */
__device__ __forceinline__ void list_reaching_subtiles(const row_blocks &blocks,
                                                       const loaded_blocks &loaded, float least)
{
    block_scratch &x = block_state();
    select_subtiles(blocks, loaded, least);
    __syncthreads();
    if (is_rare(x.subtiles > kSubtilesMax) && threadIdx.x == 0)
        atomicAdd(&shared_state().count, kShortlist + 1);
    const int all = min((int)x.subtiles, kSubtilesMax) * kSubtileQuads;
    const float own = is_rare(all > 2 * kThreads) ? list_many_subtiles(blocks, all, least)
                                                  : list_subtiles<2>(blocks, all, least);
    const uint32_t key = __reduce_max_sync(~0u, gumbel_key(own));
    if (threadIdx.x % 32 == 0)
        atomicMax(&x.seen, key);
    __syncthreads();
}

} // namespace

#endif
