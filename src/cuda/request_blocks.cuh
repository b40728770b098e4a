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

#include "cuda/request_some.cuh"
#include "cuda/request_team_cut.cuh"

namespace
{

constexpr int kBlock = CUDA_REQUEST_BLOCK;
static_assert(kBlock == 4 * 32, "a warp reads a block, a lane four tokens");
constexpr int kGuesses = 3;
/* Tops that a thread asks for side by side. */
constexpr int kTopsAhead = 3;
/* Blocks that a warp reads side by side, and that a CTA reads at most for a guess. */
constexpr int kBlocksAhead = 4, kBlocksMost = CUDA_REQUEST_CHOSEN;
/* What a soft-cap may put a smaller logit above a larger one by, of its value. */
constexpr float kCapSlack = 0x1p-16f;

/* Whether a block's largest logit bounds its tokens: nothing raises one of them. */
__device__ __forceinline__ bool blocks_bound(const gumbel_problem &q, const request_row &row)
{
    const gumbel_penalties &r = row.penalties;
    bool lowers = r.repetition >= 1.0f && r.repetition <= FLT_MAX && r.frequency >= 0.0f &&
                  r.frequency < 0x1p100f && r.presence >= 0.0f && r.presence < INFINITY;
    return row.valid && !row.lists && q.scale > 0.0f && (!row.penalised || lowers);
}

/* A row, block by block, for all threads of a CTA. */
struct row_blocks {
    const part_reader &reader;
    request_values values;
    int count;     /* of blocks */
    float *tops;   /* of each block, in shared memory: a y that none of its tokens is above */
    int *chosen;   /* blocks to look into, likewise */
    float peak;    /* this thread's largest top */
    bool infinite; /* a block may hold a NaN or +inf */

    __device__ __forceinline__ int64_t token_of(int block) const
    {
        return CUDA_REQUEST_ORIGIN(reader.p.problem.first_token) + (int64_t)block * kBlock;
    }

    /* Whether the mask leaves any token of a block, or of those that share words with it. */
    __device__ __forceinline__ bool allows(int block) const
    {
        const gumbel_problem &q = reader.p.problem;
        if (!(q.request & GUMBEL_REQUEST_MASK))
            return true;
        const int32_t *words = gumbel_problem_mask(&q, reader.b);
        int64_t from = token_of(block), to = min(from + kBlock, reader.end);
        int32_t any = 0;
#pragma unroll
        for (int i = 0; i <= kBlock / 32; i++) { /* side by side */
            int64_t at = (from >> 5) + i;
            any |= at <= (to - 1) >> 5 ? words[at] : 0;
        }
        return any != 0;
    }

    /* The peaks of this thread's blocks from `first` on that can be looked at side by side; -inf
     * where the mask leaves nothing. */
    __device__ __forceinline__ void load_peaks(int first, float (&own)[kTopsAhead]) const
    {
        const float *peaks = reader.p.peaks + reader.b * reader.p.blocks;
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            int i = first + j * kThreads;
            own[j] = i < count && allows(i) ? __ldcg(&peaks[i]) : -INFINITY;
        }
    }

    /* A y that no token of a block is above. */
    __device__ __forceinline__ float top_of(float of_block) const
    {
        const gumbel_problem &q = reader.p.problem;
        if (of_block == -INFINITY || (q.scale == 1.0f && q.soft_cap == 0.0f))
            return of_block;
        float top = request_scaled(reader.p, of_block);
        return q.soft_cap == 0.0f ? top : top + fabsf(top) * kCapSlack;
    }

    /* Find the tops, of which `own` are this thread's first peaks; what it knows of its own. */
    __device__ __forceinline__ team_facts find_tops(float (&own)[kTopsAhead])
    {
        bool own_infinite = false;
        peak = -INFINITY;
#pragma unroll 1
        for (int first = threadIdx.x; first < count; first += kTopsAhead * kThreads) {
            if (first != (int)threadIdx.x)
                load_peaks(first, own);
#pragma unroll
            for (int j = 0; j < kTopsAhead; j++) {
                float top = top_of(own[j]);
                if (first + j * kThreads < count)
                    tops[first + j * kThreads] = top;
                own_infinite |= !(values.z(top) < INFINITY);
                peak = fmaxf(peak, top);
            }
        }
        infinite = __syncthreads_or(own_infinite);
        return facts_of_peak(peak);
    }

    __device__ __forceinline__ team_facts facts_of_peak(float y) const
    {
        team_facts facts = team_facts::none();
        if (values.z(y) > -INFINITY) {
            facts.highest = facts.lowest = gumbel_key(y);
            facts.peaks = 1;
        }
        return facts;
    }

    /* Choose the blocks that may hold a z from `least` on; how many, which may be more than fit. */
    __device__ __forceinline__ int choose(float least) const
    {
        start_count();
        for (int i = threadIdx.x; i < count; i += kThreads) {
            float z = values.z(tops[i]);
            if (z < least || z == -INFINITY)
                continue;
            uint32_t at = atomicAdd(&room().count, 1);
            if (at < kBlocksMost)
                chosen[at] = i;
        }
        __syncthreads();
        int found = (int)room().count;
        start_count();
        return found;
    }

    /* Put the tokens of the first `blocks` chosen ones whose z is `least` or more into the list;
     * what this thread saw, and its largest y. */
    __device__ __forceinline__ team_facts look(int blocks, float least, float &largest) const
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        uint32_t flags = 0, alive = 0;
        largest = -INFINITY;
#pragma unroll 1
        for (int at = warp; at < blocks; at += kWarps * kBlocksAhead) {
            four l[kBlocksAhead];
#pragma unroll
            for (int i = 0; i < kBlocksAhead; i++)
                if (at + i * kWarps < blocks)
                    l[i] = reader.load_four(token_of(chosen[at + i * kWarps]) + 4 * lane);
#pragma unroll 1
            for (int i = at; i < min(blocks, at + kWarps * kBlocksAhead); i += kWarps) {
                alive += take(token_of(chosen[i]) + 4 * lane, l[0], least, flags, largest);
#pragma unroll
                for (int j = 1; j < kBlocksAhead; j++)
                    l[j - 1] = l[j];
            }
        }
        team_facts own = facts_of_peak(largest);
        own.flags = flags;
        own.alive = alive;
        return own;
    }

  private:
    static __device__ __forceinline__ void start_count()
    {
        __syncthreads();
        if (threadIdx.x == 0)
            room().count = 0;
        __syncthreads();
    }

    /* Put those of four tokens into the list that reach `least`; how many do. */
    __device__ __forceinline__ uint32_t take(int64_t token, four y, float least, uint32_t &flags,
                                             float &largest) const
    {
        uint32_t reach = 0;
        reader.make_quad(token, y.v);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float z = values.z(y.v[i]);
            if (!(z < INFINITY))
                flags |= isnan(z) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE;
            largest = fmaxf(largest, y.v[i]);
            reach |= (uint32_t)(z >= least && z > -INFINITY) << i;
        }
        uint32_t found = __popc(reach);
#pragma unroll 1
        for (; reach; reach &= reach - 1) {
            int i = __ffs(reach) - 1;
            uint32_t place = atomicAdd(&room().count, 1);
            float own = i & 2 ? (i & 1 ? y.v[3] : y.v[2]) : i & 1 ? y.v[1] : y.v[0];
            if (place < kSome)
                room().bench.list[place] = {own, (int32_t)token + i};
        }
        return found;
    }
};

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
    const team_facts tops = blocks.find_tops(peaks), all = cta_over(tops);
    auto reached = [&](const team_facts &facts, float peak, uint32_t count) {
        uint32_t key = reached_by_peaks(facts, peak, (int)max(count, 1u));
        return key ? values.z(gumbel_of_key(key)) : -INFINITY;
    };
    auto highest_of = [](const team_facts &facts) {
        return facts.peaks > 0 ? gumbel_of_key(facts.highest) : -INFINITY;
    };
    /* Some of the tokens that reach a guess may be edited away. */
    uint32_t count = wanted.target;
    if (blocks.reader.row.penalised || (blocks.reader.p.problem.request & GUMBEL_REQUEST_MASK))
        count += count / 4 + 8;
    float nth = reached(tops, blocks.peak, count), largest = highest_of(all), peak, before = NAN;
#pragma unroll 1
    for (int guess = 0; guess < kGuesses; guess++) {
        float least = wanted.bound(nth, values, values.of(largest));
        if (least == before) /* nothing else to guess */
            break;
        before = least;
        int chosen = blocks.choose(blocks.infinite ? INFINITY : least);
        if (chosen > kBlocksMost)
            break;
        team_facts own = blocks.look(chosen, least, peak), seen = cta_over(own);
        if (blocks.infinite)
            return {seen.flags ? 0 : -1, seen.flags};
        largest = highest_of(seen);
        bool enough = seen.alive >= wanted.target;
        if (least <= wanted.bound(enough ? INFINITY : -INFINITY, values, values.of(largest))) {
            if (seen.alive <= kSome)
                return {(int)seen.alive, 0};
            nth = reached(own, peak, wanted.target);
        } else {
            count = 4 * count + 16;
            nth = reached(tops, blocks.peak, count);
        }
    }
    return {-1, 0};
}

/* Serve row b by this CTA alone; whether that was possible. The peaks are asked for before the
 * row's parameters are there: both come from far. */
__device__ __noinline__ bool serve_from_blocks(const cuda_request_params &p, int64_t b)
{
    const gumbel_problem &q = p.problem;
    const request_row &row = room().row;
    part_reader reader = {p, row, room().stage, b, q.end_token};
    int *chosen = (int *)(memory_of_cta() + CUDA_REQUEST_ROOM_BYTES);
    row_blocks blocks = {reader, {}, (int)p.blocks, (float *)(chosen + kBlocksMost), chosen};
    request_wanted wanted;
    float peaks[kTopsAhead];
    if (threadIdx.x < 32)
        fetch_parameters(q, b);
    blocks.load_peaks(threadIdx.x, peaks);
    if (threadIdx.x == 0)
        room().row = request_row_of(q, b);
    __syncthreads();
    if (!can_screen(p, row, wanted) || !blocks_bound(q, row))
        return false;
    blocks.values = {row.draw.inverse_temperature, row.rules.before != 0};
    blocks_found found = find_in_blocks(blocks, wanted, peaks);
    if (found.count < 0)
        return false;
    gumbel_summary seen, raw = {};
    gumbel_summary_empty(&seen);
    seen.flags = found.flags;
    seen.best_id = found.count > 0 ? 0 : -1;
    serve_some(p, b, found.count, seen, raw, nullptr);
    return true;
}

} // namespace

#endif
