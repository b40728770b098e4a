/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokens of a row that reach a guess, by one CTA: a warp reads those of its blocks that may
 * hold some side by side, so that memory is waited for once.
 */
#ifndef GUMBEL_CUDA_REQUEST_BLOCK_ROW_CUH
#define GUMBEL_CUDA_REQUEST_BLOCK_ROW_CUH

#include "cuda/request_block_tops.cuh"
#include "cuda/request_some.cuh"

namespace
{

/* Blocks that a warp reads side by side. */
constexpr int kBlocksAhead = 8;

/* Put those of four y into the list that have a z of `least` or more. */
__device__ __forceinline__ void list_four(request_values values, int32_t token, const four &y,
                                          float least)
{
    uint32_t reach = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float z = values.z(y.v[i]);
        reach |= (uint32_t)(z >= least && z > -INFINITY) << i;
    }
    uint32_t place = atomicAdd(&room().count, __popc(reach));
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (reach >> i & 1) {
            if (place < kSome)
                room().bench.list[place] = {y.v[i], token + i};
            place++;
        }
}

/* Do so with y of the four from a token on; the largest of them. Out of line, as most rows are not
 * edited. */
__device__ __noinline__ float list_edited(request_values values, int64_t b, int64_t token,
                                          float least)
{
    const cuda_request_params &p = room().call;
    part_reader reader = {p, room().row, room().stage, b, p.problem.end_token};
    four y = reader.load_four(token);
    reader.make_quad(token, y.v);
    list_four(values, (int32_t)token, y, least);
    return largest_of(y);
}

/* Load this lane's quads of the `valid` ones of kBlocksAhead blocks; of which that was possible:
 * others are not aligned, or not all of their tokens count. */
template <gumbel_dtype dtype>
__device__ __forceinline__ uint32_t load_blocks(int64_t b, const uint16_t *chosen, uint32_t valid,
                                                four (&l)[kBlocksAhead])
{
    const gumbel_problem &q = room().call.problem;
    const int64_t start = row_blocks::token_of(0);
    const auto *origin =
        (const quad<dtype> *)((const typename quad<dtype>::element *)request_origin(q, b) + start);
    /* Where quads begin that can be loaded, from there on. */
    const int first = (int)(q.first_token - start);
    const int last = (uintptr_t)origin % sizeof *origin == 0 ? (int)(q.end_token - start) - 4 : -1;
    quad<dtype> x[kBlocksAhead] = {};
    uint32_t loaded = 0;
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++) {
        const int from = chosen[i] * kBlock;
        if ((valid >> i & 1) && from >= first && from <= last) {
            x[i] = origin[from / 4];
            loaded |= 1u << i;
        }
    }
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++)
        l[i] = x[i].widen();
    return loaded;
}

/* List the tokens whose z is `least` or more of the first kBlocksAhead of `some` blocks; the
 * largest y of those that reached it before edits, of this lane's. */
__device__ __forceinline__ float look_into(const row_blocks &blocks, const uint16_t *chosen,
                                           int some, float least)
{
    const gumbel_problem &q = room().call.problem;
    const uint32_t valid = some < kBlocksAhead ? (1u << some) - 1 : (1u << kBlocksAhead) - 1;
    four l[kBlocksAhead] = {};
    uint32_t loaded, hits = 0;
    if (!is_rare(q.logits.dtype != GUMBEL_FLOAT32))
        loaded = load_blocks<GUMBEL_FLOAT32>(blocks.b, chosen, valid, l);
    else if (q.logits.dtype == GUMBEL_BFLOAT16)
        loaded = load_blocks<GUMBEL_BFLOAT16>(blocks.b, chosen, valid, l);
    else
        loaded = load_blocks<GUMBEL_FLOAT16>(blocks.b, chosen, valid, l);
#pragma unroll
    for (int i = 0; i < kBlocksAhead; i++)
        hits |= (uint32_t)(blocks.values.z(largest_of(l[i])) >= least) << i;
    if (is_scaled(q))
        loaded = 0;
    uint32_t plain = q.request & GUMBEL_REQUEST_TRANSFORMS ? 0 : hits & loaded;
    /* Edits lower, so that what does not reach the guess before them need not be edited. */
    uint32_t others = (valid & ~loaded) | (hits & loaded & ~plain);
    float largest = -INFINITY;
#pragma unroll 1
    for (; plain; plain &= plain - 1) {
        const int at = __ffs(plain) - 1;
        four y = l[0];
#pragma unroll
        for (int i = 4; i < 4 * kBlocksAhead; i++)
            y.v[i % 4] = i / 4 == at ? l[i / 4].v[i % 4] : y.v[i % 4];
        largest = fmaxf(largest, largest_of(y));
        list_four(blocks.values, (int32_t)row_blocks::token_of(chosen[at]), y, least);
    }
#pragma unroll 1
    for (; others; others &= others - 1) {
        int64_t token = row_blocks::token_of(chosen[__ffs(others) - 1]);
        largest = fmaxf(largest, list_edited(blocks.values, blocks.b, token, least));
    }
    return largest;
}

/* List the tokens whose z is `least` or more, of the blocks that may hold some, which all are
 * stored; the largest y of those that reached it before edits, of this thread's. Where a warp has
 * too many blocks, more tokens are counted than fit. */
__device__ __forceinline__ float look(row_blocks blocks, float least)
{
    uint16_t *chosen = room_of_blocks().chosen[threadIdx.x / 32];
    const int lane = threadIdx.x % 32;
    float largest = -INFINITY;
#pragma unroll 1
    for (int turn = 0; turn < blocks.count; turn += kTurn) {
        const some_tops tops = blocks.own_tops(turn);
        int found = 0;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            float z = blocks.values.z(tops.of[j]);
            bool reaches = z >= least && z > -INFINITY;
            uint32_t all = __ballot_sync(~0u, reaches);
            int at = found + __popc(all & ((1u << lane) - 1));
            if (reaches && at < kBlocksMost)
                chosen[at] = (uint16_t)blocks.own_block(turn, j);
            found += __popc(all);
        }
        __syncwarp();
        if (is_rare(found > kBlocksMost)) {
            if (lane == 0)
                atomicAdd(&room().count, kSome + 1);
            break;
        }
#pragma unroll 1
        for (int at = 0; at < found; at += kBlocksAhead)
            largest = fmaxf(largest, look_into(blocks, chosen + at, found - at, least));
    }
    uint32_t key = __reduce_max_sync(~0u, gumbel_key(largest));
    if (lane == 0)
        atomicMax(&room_of_blocks().seen, key);
    return largest;
}

/* The flags of a row whose tops may be NaN or +inf, unless that is edited away. For all threads. */
__device__ __noinline__ uint32_t flags_in_blocks(row_blocks blocks)
{
    uint32_t flags = 0;
#pragma unroll 1
    for (int turn = 0; turn < blocks.count; turn += kTurn) {
        const some_tops tops = blocks.own_tops(turn);
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            bool may = !(blocks.values.z(tops.of[j]) < INFINITY);
#pragma unroll 1
            for (uint32_t all = __ballot_sync(~0u, may); all; all &= all - 1) {
                int block = __shfl_sync(~0u, blocks.own_block(turn, j), __ffs(all) - 1);
                float y = list_edited(blocks.values, blocks.b, blocks.token_of(block), INFINITY);
                if (!(blocks.values.z(y) < INFINITY))
                    flags |= isnan(y) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE;
            }
        }
    }
    return cta_over(team_flags{flags}).of;
}

} // namespace

#endif
