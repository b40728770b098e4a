/* SPDX-License-Identifier: Apache-2.0
 *
 * A row by one CTA, from few of its blocks of 128 tokens. The largest logit of a block bounds what
 * any of its tokens can be, since all that edits a row this way only lowers: the CTA reads the
 * blocks that reach a guess, and knows from their tokens whether the guess left anything out. Then
 * it guesses lower; where more is left than fits, higher. What three guesses do not settle, as rows
 * where thousands of tokens matter, is given up: nothing is approximate.
 */
#ifndef GUMBEL_CUDA_REQUEST_BLOCKS_CUH
#define GUMBEL_CUDA_REQUEST_BLOCKS_CUH

#include "cuda/request_block_row.cuh"

namespace
{

constexpr int kGuesses = 3;

/* Whether the product has left out any block of row b; for all threads. */
__device__ __forceinline__ bool lacks_blocks(const cuda_request_params &p, int64_t b)
{
    bool lacks = false;
    for (int i = threadIdx.x; i < (int)p.blocks && p.written; i += kThreads)
        lacks |= !block_is_stored(p, b, i);
    return __syncthreads_or(lacks);
}

/* What a search through blocks found. */
struct blocks_found {
    int count;      /* of tokens, in the list; -1 where not all that can matter are */
    uint32_t flags; /* of the row */
};

/* Bring all tokens of the row that can matter into the list; for all threads. */
__device__ __forceinline__ blocks_found find_in_blocks(row_blocks &blocks,
                                                       const request_wanted &wanted,
                                                       float (&peaks)[kTopsAhead])
{
    const request_values &values = blocks.values;
    const block_facts tops = join_facts(blocks.find_tops(peaks));
    /* Some of the tokens that reach a guess may be edited away. */
    const cuda_request_params &p = blocks.reader.p;
    bool masked = (p.problem.request & GUMBEL_REQUEST_MASK) && !p.written;
    uint32_t count = blocks_guessed(wanted.target, masked || blocks.reader.row.penalised);
    float nth = reached_by_tops(tops, blocks.peak, (int)max(count, 1u));
    float largest = tops.largest(), before = NAN, peak;
    /* What is above all that is not stored: below, nothing can be known. */
    float missing = values.z(gumbel_of_key(tops.missing));
    float lowest = missing > -INFINITY ? gumbel_of_key(gumbel_key(missing) + 1) : -INFINITY;
#pragma unroll 1
    for (int guess = 0; guess < kGuesses; guess++) {
        float least = fmaxf(wanted.bound(values.z(nth), values, values.of(largest)), lowest);
        if (least == before) /* nothing else to guess */
            break;
        before = least;
        int chosen = blocks.choose(tops.flags ? INFINITY : least);
        if (chosen > kBlocksMost)
            break;
        block_facts seen = join_facts(blocks.look(chosen, least, peak));
        if (tops.flags)
            return {seen.flags ? 0 : -1, seen.flags};
        largest = seen.largest();
        bool enough = seen.alive >= wanted.target;
        if (least <= wanted.bound(enough ? INFINITY : -INFINITY, values, values.of(largest))) {
            if (seen.alive <= kSome)
                return {(int)seen.alive, 0};
            nth = reached_by_tops(seen, peak, (int)max(wanted.target, 1u));
        } else {
            count = 4 * count + 16;
            nth = reached_by_tops(tops, blocks.peak, (int)count);
        }
        if (threadIdx.x == 96)
            blocks.start();
        __syncthreads();
    }
    return {-1, 0};
}

/* Serve row b by this CTA alone, which has the call; whether that was possible. The peaks are asked
 * for before the row's parameters are there: both come from far. */
__device__ __noinline__ bool serve_from_blocks(int64_t b)
{
    const cuda_request_params &p = room().call;
    const gumbel_problem &q = p.problem;
    const request_row &row = room().row;
    part_reader reader = {p, row, room().stage, b, q.end_token};
    int *chosen = (int *)(memory_of_cta() + CUDA_REQUEST_ROOM_BYTES);
    row_blocks blocks = {reader, {}, (int)p.blocks, (float *)(chosen + kBlocksMost + 1), chosen};
    request_wanted wanted;
    float peaks[kTopsAhead];
    blocks.load_peaks(threadIdx.x, peaks);
    make_row(room().row, q, b);
    if (threadIdx.x == 96)
        blocks.start();
    __syncthreads();
    if (!can_screen(p, row, wanted) || !blocks_bound(q, row))
        return false;
    blocks.values = {row.draw.inverse_temperature, row.rules.before != 0};
    blocks_found found = find_in_blocks(blocks, wanted, peaks);
    if (found.count < 0)
        return false;
    gumbel_summary seen;
    gumbel_summary_empty(&seen);
    seen.flags = found.flags;
    seen.best_id = found.count > 0 ? 0 : -1;
    serve_some(b, found.count, seen, seen, nullptr); /* no raw mass is asked for */
    return true;
}

} // namespace

#endif
