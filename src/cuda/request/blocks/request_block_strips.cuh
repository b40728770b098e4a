/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokens of a row that reach a guess, by one CTA, where a product has stored strips of blocks
 * alone. What a row runs through once takes 5 to 6 cycles an instruction, warm or cold, so that all
 * that counts is how few there are: strips that are stored are put down one by one, and a thread
 * takes four of their tokens, whichever these are; logits are float32, aligned and not scaled.
 */
#ifndef GUMBEL_CUDA_REQUEST_BLOCK_STRIPS_CUH
#define GUMBEL_CUDA_REQUEST_BLOCK_STRIPS_CUH

#include "cuda/request/blocks/request_block_row.cuh"

namespace
{

constexpr int kStripsOfBlock = CUDA_REQUEST_SUBTILES, kQuadsOfStrip = CUDA_REQUEST_SUBTILE / 4;
/* Strips that a CTA looks into at most: a row seldom needs 1000. */
constexpr int kStripsMost = 4096;

/* Strips to look into, by their numbers in the row, in the memory of bins. */
__device__ __forceinline__ uint16_t *strips_chosen() { return (uint16_t *)shared().bench.high; }
static_assert(kStripsMost * sizeof(uint16_t) <= offsetof(team_bench, list), "bins have the memory");
static_assert(kTurn * kStripsOfBlock <= UINT16_MAX + 1, "a turn's strips have such numbers");

/* The logits of row b, from its first block on, as a product stores them. */
__device__ __forceinline__ const float *stored_row(int64_t b)
{
    return (const float *)request_origin(shared().call.problem, b) + row_blocks::start_of(0);
}

/* Put down the strips that are stored of this thread's blocks whose z may be `least` or more; more
 * than fit are counted. */
__device__ __forceinline__ void choose_strips(const row_blocks &blocks, const turn_blocks &loaded,
                                              float least)
{
    uint32_t chosen = 0;
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        if (blocks.values.z(loaded.peaks.of[j]) >= least)
            chosen |= loaded.strips[j] << kStripsOfBlock * j;
    uint32_t at = chosen ? atomicAdd(&shared_of_blocks().strips, __popc(chosen)) : 0;
#pragma unroll 1
    for (; chosen; chosen &= chosen - 1, at++) {
        const int own = __ffs(chosen) - 1;
        if (at < kStripsMost)
            strips_chosen()[at] =
                (uint16_t)(blocks.own_block(0, own / kStripsOfBlock) * kStripsOfBlock +
                           own % kStripsOfBlock);
    }
}

/* Which of the four tokens from a place in the row on have a z of `least` or more, as bits; those
 * that do not count, which are the last ones, have none. */
__device__ __forceinline__ uint32_t find_reaching(const row_blocks &blocks, const float *row,
                                                  int place, float least)
{
    const int64_t left = shared().call.problem.end_token - row_blocks::start_of(0) - place;
    four l;
    if (is_rare(left < 4))
        l = load_apart(blocks.b, row_blocks::start_of(0) + place);
    else
        l = ((const quad<GUMBEL_FLOAT32> *)(row + place))->to_floats();
    uint32_t reach = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        reach |= (uint32_t)(blocks.values.z(l.v[i]) >= least) << i;
    return reach;
}

/* Where in the row the `at`-th quad of the strips put down begins. */
__device__ __forceinline__ int place_of_strips(int at)
{
    return 4 * (strips_chosen()[at / kQuadsOfStrip] * kQuadsOfStrip + at % kQuadsOfStrip);
}

/* List the tokens of the `all` quads put down whose z is `least` or more, after edits, too; the
 * largest y of this thread's, which asks for `ahead` quads side by side. */
template <int ahead>
__device__ __forceinline__ float list_strips(const row_blocks &blocks, int all, float least)
{
    const bool edits = shared().call.problem.request & GUMBEL_REQUEST_TRANSFORMS;
    const float *row = stored_row(blocks.b);
    float largest = -INFINITY;
#pragma unroll 1
    for (int base = threadIdx.x; base < all; base += ahead * kThreads) {
        uint32_t reach = 0;
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const int at = base + i * kThreads;
            if (at < all)
                reach |= find_reaching(blocks, row, place_of_strips(at), least) << 4 * i;
        }
#pragma unroll 1
        for (; reach; reach &= reach - 1) {
            const int own = __ffs(reach) - 1;
            const int place = place_of_strips(base + own / 4 * kThreads) + own % 4;
            const int token = (int)(row_blocks::start_of(0) + place);
            float y = row[place];
            if (edits)
                y = edited(token, y);
            const bool stays = blocks.values.z(y) >= least;
            const uint32_t at = ptx_atomic_count_if(stays, &shared().count);
            if (stays && at < kShortlist)
                shared().bench.list[at] = {y, token};
            largest = fmaxf(largest, y);
        }
    }
    return largest;
}

/* Of many quads, as what min_p keeps of flat rows: each trip to memory counts then, not how much
 * code there is. */
__device__ __noinline__ float list_many_strips(row_blocks blocks, int all, float least)
{
    return list_strips<4>(blocks, all, least);
}

/* As look(), of blocks that are one turn, of which this thread knows `some`. */
__device__ __forceinline__ void look_at_strips(const row_blocks &blocks, const turn_blocks &loaded,
                                               float least)
{
    block_shared &x = shared_of_blocks();
    choose_strips(blocks, loaded, least);
    __syncthreads();
    if (is_rare(x.strips > kStripsMost) && threadIdx.x == 0)
        atomicAdd(&shared().count, kShortlist + 1);
    const int all = min((int)x.strips, kStripsMost) * kQuadsOfStrip;
    const float own = is_rare(all > 2 * kThreads) ? list_many_strips(blocks, all, least)
                                                  : list_strips<2>(blocks, all, least);
    const uint32_t key = __reduce_max_sync(~0u, gumbel_key(own));
    if (threadIdx.x % 32 == 0)
        atomicMax(&x.seen, key);
    __syncthreads();
}

} // namespace

#endif
