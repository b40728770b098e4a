/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists the tokens of a row with a z of at least `min_z`, by one CTA. Warps read several blocks at
 * once and gather the quads that hold such tokens; then each thread takes a token, so that the
 * loads for all edits are in flight together.
 */
#ifndef GUMBEL_CUDA_BLOCK_ROW_CUH
#define GUMBEL_CUDA_BLOCK_ROW_CUH

#include "cuda/truncated/blocks/block_tops.cuh"
#include "cuda/truncated/few/shortlist.cuh"

namespace
{

/* Blocks that a warp reads at once. */
constexpr int kBlocksAhead = 8;

/* Quads with tokens that may reach the guess, in the memory of bins. */
struct __align__(16) block_quads
{
    float4 logits[kShortlist];
    int32_t places[kShortlist]; /* 32 * index of the selected block + lane */
};
static_assert(sizeof(block_quads) <= offsetof(row_scratch, list), "bins have the memory");

__device__ __forceinline__ block_quads &quad_memory()
{
    return *(block_quads *)shared_state().scratch.high;
}

/* ---------------------------------------------------------------------------------- quads ---- */

/* Stores a quad unless the memory is full. */
__device__ __forceinline__ void store_quad(uint32_t at, const four &l, int place)
{
    if (at >= kShortlist)
        return;
    quad_memory().logits[at] = {l.v[0], l.v[1], l.v[2], l.v[3]};
    quad_memory().places[at] = place;
}

/* The logits of the quad from `token` on; -inf for invalid tokens. */
__device__ __noinline__ four load_any_quad(int64_t b, int64_t token)
{
    const gumbel_problem &q = shared_state().call.problem;
    return load_four_logits(q, b, token, q.end_token);
}

/* Gathers this lane's quad of a block if its largest logit reaches `min_z`. Out of line, since most
 * quads are aligned, valid and not scaled. */
__device__ __noinline__ void gather_any_quad(row_blocks blocks, int block, int place, float min_z)
{
    const four l = load_any_quad(blocks.b, row_blocks::token_of(block));
    float top = largest_of(l);
    if (is_scaled(shared_state().call.problem))
        top = scale_top(top);
    if (blocks.values.to_z(top) >= min_z)
        store_quad(atomicAdd(&block_state().quads, 1), l, place);
}

/* Bits of the first kBlocksAhead selected blocks in which this lane's quad is stored; bits past
 * `loaded` are arbitrary. */
__device__ __forceinline__ uint32_t find_stored(const row_blocks &blocks, const uint16_t *selected,
                                                int loaded)
{
    uint32_t stored = 0;
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++)
        stored |= (uint32_t)blocks.is_stored(selected[i < loaded ? i : 0]) << i;
    return stored;
}

/* Loads this lane's quads of the `stored` blocks; returns the bits of those loaded. Unaligned quads
 * and quads with invalid tokens are not loaded. */
template <gumbel_dtype dtype>
__device__ __forceinline__ uint32_t load_blocks(int64_t b, const uint16_t *selected,
                                                uint32_t stored, four (&l)[kBlocksAhead])
{
    const gumbel_problem &q = shared_state().call.problem;
    const int64_t start = row_blocks::token_of(0);
    const auto *origin =
        (const quad<dtype> *)((const typename quad<dtype>::element *)get_row_origin(q, b) + start);
    /* Offsets of loadable quads: `span` tokens from `first` on. */
    const int first = (int)(q.first_token - start);
    const int last = (uintptr_t)origin % sizeof *origin == 0 ? (int)(q.end_token - start) - 4 : -1;
    const uint32_t span = last >= first ? (uint32_t)(last - first) + 1 : 0;
    quad<dtype> x[kBlocksAhead] = {};
    uint32_t loaded = 0;
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++) {
        const int from = selected[i] * kBlock;
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

/* Whether the mask allows any token of this lane's quad of a block. */
__device__ __forceinline__ bool mask_allows_quad(int64_t b, int block)
{
    const int32_t *mask = gumbel_problem_mask(&shared_state().call.problem, b);
    return read_nibble((const uint32_t *)mask, row_blocks::token_of(block)) != 0;
}

/* Removes from `hits` the blocks whose quad of this lane is masked. */
__device__ __noinline__ uint32_t drop_masked_quads(int64_t b, const uint16_t *selected,
                                                   uint32_t hits)
{
    uint32_t allowed = 0;
#pragma unroll 1
    for (; hits; hits &= hits - 1)
        allowed |= mask_allows_quad(b, selected[__ffs(hits) - 1]) ? hits & -hits : 0;
    return allowed;
}

/* Gathers the quads of the first kBlocksAhead of `count` selected blocks whose largest logit
 * reaches `min_z`, which is finite. With `by_mask`, masked quads are skipped. `place` is the index
 * of the first block among all selected ones. */
__device__ __forceinline__ void gather_quads(const row_blocks &blocks, const uint16_t *selected,
                                             int place, int count, float min_z, bool by_mask)
{
    const gumbel_problem &q = shared_state().call.problem;
    uint32_t stored = (1u << min(count, kBlocksAhead)) - 1;
    if (shared_state().call.stored_subtiles)
        stored &= find_stored(blocks, selected, count);
    if (is_rare(by_mask))
        stored = drop_masked_quads(blocks.b, selected, stored);
    four l[kBlocksAhead];
    uint32_t loaded, hits = 0;
    if (!is_rare(q.logits.dtype != GUMBEL_FLOAT32))
        loaded = load_blocks<GUMBEL_FLOAT32>(blocks.b, selected, stored, l);
    else if (q.logits.dtype == GUMBEL_BFLOAT16)
        loaded = load_blocks<GUMBEL_BFLOAT16>(blocks.b, selected, stored, l);
    else
        loaded = load_blocks<GUMBEL_FLOAT16>(blocks.b, selected, stored, l);
    if (is_rare(is_scaled(q)))
        loaded = 0;
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++)
        hits |= (uint32_t)(blocks.values.to_z(largest_of(l[i])) >= min_z) << i;
    hits &= loaded;
    place = 32 * place + (int)threadIdx.x % 32;
    uint32_t at = hits ? atomicAdd(&block_state().quads, __popc(hits)) : 0;
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++)
        if (hits >> i & 1)
            store_quad(at++, l[i], place + 32 * i);
    uint32_t apart = stored & ~loaded;
#pragma unroll 1
    for (; is_rare(apart != 0); apart &= apart - 1) {
        const int i = __ffs(apart) - 1;
        gather_any_quad(blocks, selected[i], place + 32 * i, min_z);
    }
}

/* Gathers the quads of all blocks whose top reaches `min_z`; `by_mask` as in gather_quads(). If a
 * warp has too many blocks, the token count overflows. */
__device__ __forceinline__ void gather_from_blocks(const row_blocks &blocks, float min_z,
                                                   bool by_mask)
{
    const int lane = threadIdx.x % 32, place = (int)threadIdx.x / 32 * kBlocksMax;
    uint16_t *selected = block_state().selected + place;
    int found = 0;
#pragma unroll 1
    for (int turn = 0; turn < blocks.count; turn += kTurnBlocks) {
        const turn_tops tops = blocks.own_tops(turn);
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            bool reaches = blocks.values.to_z(tops.values[j]) >= min_z;
            uint32_t all = __ballot_sync(~0u, reaches);
            int at = found + __popc(all & ((1u << lane) - 1));
            if (reaches && at < kBlocksMax)
                selected[at] = (uint16_t)blocks.own_block(turn, j);
            found += __popc(all);
        }
    }
    __syncwarp();
    if (is_rare(found > kBlocksMax)) {
        if (lane == 0)
            atomicAdd(&shared_state().count, kShortlist + 1);
        found = kBlocksMax;
    }
#pragma unroll 1
    for (int at = 0; at < found; at += kBlocksAhead)
        gather_quads(blocks, selected + at, place + at, found - at, min_z, by_mask);
}

/* --------------------------------------------------------------------------------- tokens ---- */

/* Appends a token to the list if its z is at least `min_z`; by a whole warp. */
__device__ __forceinline__ void list_token(logit_values values, int token, float y, float min_z)
{
    const bool reaches = values.to_z(y) >= min_z;
    const uint32_t all = __ballot_sync(~0u, reaches);
    const int lane = threadIdx.x % 32;
    uint32_t at = 0;
    if (lane == 0 && all)
        at = atomicAdd(&shared_state().count, __popc(all));
    at = __shfl_sync(~0u, at, 0) + __popc(all & ((1u << lane) - 1));
    if (reaches && at < kShortlist)
        shared_state().scratch.list[at] = {y, token};
}

__device__ __forceinline__ bool is_valid_token(const gumbel_problem &q, int64_t token)
{
    return token >= q.first_token && token < q.end_token;
}

/* y of a token after edits, for a row without lists; all loads are issued at once. */
__device__ __forceinline__ float edit_token(int token, float y)
{
    const gumbel_history &h = shared_state().call.problem.history;
    const row_edits &edits = shared_state().row.edits;
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
        y = gumbel_apply_penalties(y, &edits.penalties, output ? count : 0);
    return allowed ? y : -INFINITY;
}

/* Lists the tokens of `count` quads that reach `min_z`, after edits too. Returns the largest y of
 * this thread; with edits, only of tokens that reached `min_z` before. For all threads. */
__device__ __forceinline__ float list_quads(const row_blocks &blocks, int count, float min_z)
{
    const cuda_truncated_params &p = shared_state().call;
    const bool edits = p.problem.features & GUMBEL_FEATURE_TRANSFORMS;
    float largest = -INFINITY;
#pragma unroll 1
    for (int base = 0; base < 4 * count; base += kThreads) {
        const int at = base + (int)threadIdx.x;
        int64_t token = -1;
        float y = -INFINITY;
        if (at < 4 * count) {
            const int place = quad_memory().places[at / 4];
            token = row_blocks::start_of(block_state().selected[place / 32]);
            token += 4 * (place % 32) + at % 4;
            y = (&quad_memory().logits[0].x)[at];
        }
        if (is_rare(is_scaled(p.problem)) && is_valid_token(p.problem, token))
            y = scale_logit_noinline(p, y);
        if (edits)
            y = blocks.values.to_z(y) >= min_z ? edit_token((int)token, y) : -INFINITY;
        largest = fmaxf(largest, y);
        list_token(blocks.values, (int)token, y, min_z);
    }
    return largest;
}

/* Lists the tokens with a z of at least `min_z`, after edits, from the blocks whose top reaches it;
 * returns as list_quads(). If the tokens do not fit, the count overflows. Ends with a barrier. */
__device__ __forceinline__ float list_reaching(const row_blocks &blocks, float min_z)
{
    block_scratch &x = block_state();
    const gumbel_problem &q = shared_state().call.problem;
    min_z = fmaxf(min_z, -FLT_MAX);
    bool by_mask = false;
#pragma unroll 1
    while (true) {
        gather_from_blocks(blocks, min_z, by_mask);
        __syncthreads();
        if (!is_rare(x.quads > kShortlist) || by_mask || !(q.features & GUMBEL_FEATURE_MASK))
            break;
        by_mask = true; /* a grammar may allow few of the tokens */
        __syncthreads();
        if (threadIdx.x == 0)
            x.quads = 0;
        __syncthreads();
    }
    if (is_rare(x.quads > kShortlist) && threadIdx.x == 0)
        atomicAdd(&shared_state().count, kShortlist + 1);
    const float largest = list_quads(blocks, min((int)x.quads, kShortlist), min_z);
    uint32_t key = __reduce_max_sync(~0u, gumbel_key_of_value(largest));
    if (threadIdx.x % 32 == 0)
        atomicMax(&x.seen, key);
    __syncthreads();
    return largest;
}

/* The flags of a row whose tops include NaN or +inf; edits may remove those. For all threads. */
__device__ __noinline__ uint32_t find_flags_in_blocks(row_blocks blocks)
{
    const cuda_truncated_params &p = shared_state().call;
    uint32_t flags = 0;
#pragma unroll 1
    for (int turn = 0; turn < blocks.count; turn += kTurnBlocks) {
        const turn_tops tops = blocks.own_tops(turn);
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            bool may = !(blocks.values.to_z(tops.values[j]) < INFINITY);
#pragma unroll 1
            for (uint32_t all = __ballot_sync(~0u, may); all; all &= all - 1) {
                int block = __shfl_sync(~0u, blocks.own_block(turn, j), __ffs(all) - 1);
                const bool stored = blocks.is_stored(block);
                int64_t token = blocks.token_of(block);
                four l = load_any_quad(blocks.b, token);
#pragma unroll 1
                for (int i = 0; i < 4; i++, token++) {
                    float y = is_scaled(p.problem) ? scale_logit_noinline(p, l.v[0]) : l.v[0];
                    if (stored && is_valid_token(p.problem, token))
                        flags |= flags_of_z(blocks.values.to_z(edit_token((int)token, y)));
                    l = {l.v[1], l.v[2], l.v[3], l.v[0]};
                }
            }
        }
    }
    return join_cta(joined_flags{flags}).value;
}

} // namespace

#endif
