/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokens of a row that reach a guess, by one CTA. Warps read blocks side by side and gather the
 * quads of tokens that may; then each thread takes a token, so that what edits say of all of them
 * is asked for at once.
 */
#ifndef GUMBEL_CUDA_REQUEST_BLOCK_ROW_CUH
#define GUMBEL_CUDA_REQUEST_BLOCK_ROW_CUH

#include "cuda/request/blocks/request_block_tops.cuh"
#include "cuda/request/few/request_shortlist.cuh"

namespace
{

/* Blocks that a warp reads side by side. */
constexpr int kBlocksAhead = 8;

/* Quads of tokens that may reach a guess, in the memory of bins. */
struct __align__(16) block_quads
{
    float4 logits[kShortlist];
    int32_t places[kShortlist]; /* 32 times that of the block among those chosen, and the lane */
};
static_assert(sizeof(block_quads) <= offsetof(team_bench, list), "bins have the memory");

__device__ __forceinline__ block_quads &quads() { return *(block_quads *)shared().bench.high; }

/* ---------------------------------------------------------------------------------- quads ---- */

/* Put a quad where there is room for it. */
__device__ __forceinline__ void put_quad(uint32_t at, const four &l, int place)
{
    if (at >= kShortlist)
        return;
    quads().logits[at] = {l.v[0], l.v[1], l.v[2], l.v[3]};
    quads().places[at] = place;
}

/* The logits of the quad from a token on; -inf for tokens that do not count. */
__device__ __noinline__ four load_apart(int64_t b, int64_t token)
{
    const gumbel_problem &q = shared().call.problem;
    return request_load_four(q, b, token, q.end_token);
}

/* Gather this lane's quad of a block if its largest logit reaches `least`. Out of line, as most can
 * be loaded as one, and have logits that are y. */
__device__ __noinline__ void gather_apart(row_blocks blocks, int block, int place, float least)
{
    const four l = load_apart(blocks.b, row_blocks::token_of(block));
    float top = largest_of(l);
    if (is_scaled(shared().call.problem))
        top = scale_top(top);
    if (blocks.values.z(top) >= least)
        put_quad(atomicAdd(&shared_of_blocks().quads, 1), l, place);
}

/* Of the first kBlocksAhead of `some` blocks, those whose quads of this lane are stored; any bits
 * past them. */
__device__ __forceinline__ uint32_t find_stored(const row_blocks &blocks, const uint16_t *chosen,
                                                int loaded)
{
    uint32_t stored = 0;
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++)
        stored |= (uint32_t)blocks.holds(chosen[i < loaded ? i : 0]) << i;
    return stored;
}

/* Load this lane's quads of those of kBlocksAhead blocks that are `stored`; of which that was
 * possible: others are not aligned, or not all of their tokens count. */
template <gumbel_dtype dtype>
__device__ __forceinline__ uint32_t load_blocks(int64_t b, const uint16_t *chosen, uint32_t stored,
                                                four (&l)[kBlocksAhead])
{
    const gumbel_problem &q = shared().call.problem;
    const int64_t start = row_blocks::token_of(0);
    const auto *origin =
        (const quad<dtype> *)((const typename quad<dtype>::element *)request_origin(q, b) + start);
    /* Where quads begin that can be loaded, from there on: so many tokens from the first one. */
    const int first = (int)(q.first_token - start);
    const int last = (uintptr_t)origin % sizeof *origin == 0 ? (int)(q.end_token - start) - 4 : -1;
    const uint32_t span = last >= first ? (uint32_t)(last - first) + 1 : 0;
    quad<dtype> x[kBlocksAhead] = {};
    uint32_t loaded = 0;
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++) {
        const int from = chosen[i] * kBlock;
        if ((stored >> i & 1) && (uint32_t)(from - first) < span) {
            x[i] = origin[from / 4];
            loaded |= 1u << i;
        }
    }
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++)
        l[i] = x[i].to_floats();
    return loaded;
}

/* Whether the mask leaves any token of this lane's quad of a block. */
__device__ __forceinline__ bool leaves_any(int64_t b, int block)
{
    const int32_t *mask = gumbel_problem_mask(&shared().call.problem, b);
    return read_nibble((const uint32_t *)mask, row_blocks::token_of(block)) != 0;
}

/* Those of `hits`, blocks in which this lane has a quad, where it does. */
__device__ __noinline__ uint32_t drop_masked_quads(int64_t b, const uint16_t *chosen, uint32_t hits)
{
    uint32_t left = 0;
#pragma unroll 1
    for (; hits; hits &= hits - 1)
        left |= leaves_any(b, chosen[__ffs(hits) - 1]) ? hits & -hits : 0;
    return left;
}

/* Gather the quads of the first kBlocksAhead of `count` chosen blocks whose largest logit reaches
 * `least`, which is finite; where `by_mask`, none that it leaves nothing of. `place` is that of the
 * first block among all that are chosen. */
__device__ __forceinline__ void gather_quads(const row_blocks &blocks, const uint16_t *chosen,
                                             int place, int count, float least, bool by_mask)
{
    const gumbel_problem &q = shared().call.problem;
    uint32_t stored = (1u << min(count, kBlocksAhead)) - 1;
    if (shared().call.stored_subtiles)
        stored &= find_stored(blocks, chosen, count);
    if (is_rare(by_mask))
        stored = drop_masked_quads(blocks.b, chosen, stored);
    four l[kBlocksAhead];
    uint32_t loaded, hits = 0;
    if (!is_rare(q.logits.dtype != GUMBEL_FLOAT32))
        loaded = load_blocks<GUMBEL_FLOAT32>(blocks.b, chosen, stored, l);
    else if (q.logits.dtype == GUMBEL_BFLOAT16)
        loaded = load_blocks<GUMBEL_BFLOAT16>(blocks.b, chosen, stored, l);
    else
        loaded = load_blocks<GUMBEL_FLOAT16>(blocks.b, chosen, stored, l);
    if (is_rare(is_scaled(q)))
        loaded = 0;
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++)
        hits |= (uint32_t)(blocks.values.z(largest_of(l[i])) >= least) << i;
    hits &= loaded;
    place = 32 * place + (int)threadIdx.x % 32;
    uint32_t at = hits ? atomicAdd(&shared_of_blocks().quads, __popc(hits)) : 0;
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++)
        if (hits >> i & 1)
            put_quad(at++, l[i], place + 32 * i);
    uint32_t apart = stored & ~loaded;
#pragma unroll 1
    for (; is_rare(apart != 0); apart &= apart - 1) {
        const int i = __ffs(apart) - 1;
        gather_apart(blocks, chosen[i], place + 32 * i, least);
    }
}

/* Gather the quads of all blocks that may hold tokens whose z is `least` or more, whose largest are
 * stored; `by_mask` as above. Where a warp has too many blocks, more tokens are counted than fit.
 */
__device__ __forceinline__ void gather_from_blocks(const row_blocks &blocks, float least,
                                                   bool by_mask)
{
    const int lane = threadIdx.x % 32, place = (int)threadIdx.x / 32 * kBlocksMost;
    uint16_t *chosen = shared_of_blocks().chosen + place;
    int found = 0;
#pragma unroll 1
    for (int turn = 0; turn < blocks.count; turn += kTurn) {
        const turn_tops tops = blocks.own_tops(turn);
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            bool reaches = blocks.values.z(tops.of[j]) >= least;
            uint32_t all = __ballot_sync(~0u, reaches);
            int at = found + __popc(all & ((1u << lane) - 1));
            if (reaches && at < kBlocksMost)
                chosen[at] = (uint16_t)blocks.own_block(turn, j);
            found += __popc(all);
        }
    }
    __syncwarp();
    if (is_rare(found > kBlocksMost)) {
        if (lane == 0)
            atomicAdd(&shared().count, kShortlist + 1);
        found = kBlocksMost;
    }
#pragma unroll 1
    for (int at = 0; at < found; at += kBlocksAhead)
        gather_quads(blocks, chosen + at, place + at, found - at, least, by_mask);
}

/* --------------------------------------------------------------------------------- tokens ---- */

/* Put a token into the list if its z is `least` or more; by a whole warp. */
__device__ __forceinline__ void list_token(request_values values, int token, float y, float least)
{
    const bool reaches = values.z(y) >= least;
    const uint32_t all = __ballot_sync(~0u, reaches);
    const int lane = threadIdx.x % 32;
    uint32_t at = 0;
    if (lane == 0 && all)
        at = atomicAdd(&shared().count, __popc(all));
    at = __shfl_sync(~0u, at, 0) + __popc(all & ((1u << lane) - 1));
    if (reaches && at < kShortlist)
        shared().bench.list[at] = {y, token};
}

/* Whether a token counts. */
__device__ __forceinline__ bool counts(const gumbel_problem &q, int64_t token)
{
    return token >= q.first_token && token < q.end_token;
}

/* y of a token after edits, which come from no list: all that they go by is asked for at
 * once. */
__device__ __forceinline__ float edited(int token, float y)
{
    const gumbel_history &h = shared().call.problem.history;
    const row_edits &edits = shared().row.edits;
    bool allowed = true, prompt = false, output = false;
    uint32_t count = 0;
    if (edits.mask)
        allowed = read_bit(edits.mask, token);
    if (edits.act && token < h.vocab_size) {
        prompt = read_bit(edits.prompt, token);
        output = read_bit(edits.output, token);
        count = gumbel_history_count(&h, edits.slot, token);
    }
    if (prompt || output)
        y = gumbel_penalise(y, &edits.penalties, output ? count : 0);
    return allowed ? y : -INFINITY;
}

/* List the tokens of `count` quads that reach `least`, after edits too; the largest y of this
 * thread's, of those alone where there are edits. For all threads. */
__device__ __forceinline__ float list_quads(const row_blocks &blocks, int count, float least)
{
    const cuda_request_params &p = shared().call;
    const bool edits = p.problem.request & GUMBEL_REQUEST_TRANSFORMS;
    float largest = -INFINITY;
#pragma unroll 1
    for (int base = 0; base < 4 * count; base += kThreads) {
        const int at = base + (int)threadIdx.x;
        int64_t token = -1;
        float y = -INFINITY;
        if (at < 4 * count) {
            const int place = quads().places[at / 4];
            token = row_blocks::start_of(shared_of_blocks().chosen[place / 32]);
            token += 4 * (place % 32) + at % 4;
            y = (&quads().logits[0].x)[at];
        }
        if (is_rare(is_scaled(p.problem)) && counts(p.problem, token))
            y = request_scaled(p, y);
        if (edits)
            y = blocks.values.z(y) >= least ? edited((int)token, y) : -INFINITY;
        largest = fmaxf(largest, y);
        list_token(blocks.values, (int)token, y, least);
    }
    return largest;
}

/* List the tokens whose z is `least` or more, of the blocks that may hold some, whose largest are
 * stored; as list_quads(). Where they are too many, more than fit are counted. Ends with a barrier.
 */
__device__ __forceinline__ float look(const row_blocks &blocks, float least)
{
    block_shared &x = shared_of_blocks();
    const gumbel_problem &q = shared().call.problem;
    least = fmaxf(least, -FLT_MAX);
    bool by_mask = false;
#pragma unroll 1
    while (true) {
        gather_from_blocks(blocks, least, by_mask);
        __syncthreads();
        if (!is_rare(x.quads > kShortlist) || by_mask || !(q.request & GUMBEL_REQUEST_MASK))
            break;
        by_mask = true; /* what a grammar leaves may be few of them */
        __syncthreads();
        if (threadIdx.x == 0)
            x.quads = 0;
        __syncthreads();
    }
    if (is_rare(x.quads > kShortlist) && threadIdx.x == 0)
        atomicAdd(&shared().count, kShortlist + 1);
    const float largest = list_quads(blocks, min((int)x.quads, kShortlist), least);
    uint32_t key = __reduce_max_sync(~0u, gumbel_key(largest));
    if (threadIdx.x % 32 == 0)
        atomicMax(&x.seen, key);
    __syncthreads();
    return largest;
}

/* The flags of a token. */
__device__ __forceinline__ uint32_t flags_of(float z)
{
    return isnan(z) ? GUMBEL_FLAG_NAN : z == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
}

/* The flags of a row whose tops may be NaN or +inf, unless that is edited away. For all threads. */
__device__ __noinline__ uint32_t flags_in_blocks(row_blocks blocks)
{
    const cuda_request_params &p = shared().call;
    uint32_t flags = 0;
#pragma unroll 1
    for (int turn = 0; turn < blocks.count; turn += kTurn) {
        const turn_tops tops = blocks.own_tops(turn);
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            bool may = !(blocks.values.z(tops.of[j]) < INFINITY);
#pragma unroll 1
            for (uint32_t all = __ballot_sync(~0u, may); all; all &= all - 1) {
                int block = __shfl_sync(~0u, blocks.own_block(turn, j), __ffs(all) - 1);
                const bool stored = blocks.holds(block);
                int64_t token = blocks.token_of(block);
                four l = load_apart(blocks.b, token);
#pragma unroll 1
                for (int i = 0; i < 4; i++, token++) {
                    float y = is_scaled(p.problem) ? request_scaled(p, l.v[0]) : l.v[0];
                    if (stored && counts(p.problem, token))
                        flags |= flags_of(blocks.values.z(edited((int)token, y)));
                    l = {l.v[1], l.v[2], l.v[3], l.v[0]};
                }
            }
        }
    }
    return cta_over(team_flags{flags}).of;
}

} // namespace

#endif
