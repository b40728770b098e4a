/* SPDX-License-Identifier: Apache-2.0
 *
 * A row block by block, as one CTA looks at it: the largest logit of each block, what they reach
 * together, the blocks that are worth reading, and the tokens of these that are worth listing.
 */
#ifndef GUMBEL_CUDA_REQUEST_BLOCK_ROW_CUH
#define GUMBEL_CUDA_REQUEST_BLOCK_ROW_CUH

#include "cuda/request_some.cuh"
#include "cuda/request_team_cut.cuh"

namespace
{

constexpr int kBlock = CUDA_REQUEST_BLOCK;
static_assert(kBlock == 4 * 32, "a warp reads a block, a lane four tokens");
/* Tops that a thread asks for side by side. */
constexpr int kTopsAhead = 3;
/* Blocks that a warp reads side by side, and that a CTA reads at most for a guess. */
constexpr int kBlocksAhead = 4, kBlocksMost = CUDA_REQUEST_CHOSEN;
/* Halvings of what threads' largest tops span end once an eighth at most is on top of what is
 * wanted: each is a barrier. Half on top would cost 1 us, for the blocks. */
constexpr int kTopSlack = 8;
/* What a soft-cap may put a smaller logit above a larger one by, of its value. */
constexpr float kCapSlack = 0x1p-16f;

/* Whether the product has stored a block of row b. */
__device__ __forceinline__ bool block_is_stored(const cuda_request_params &p, int64_t b, int block)
{
    int64_t words = gumbel_words_of(p.problem.batch);
    return !p.written || (__ldcg(&p.written[block * words + b / 32]) >> b % 32 & 1);
}

/* What was seen of tokens, or of blocks' tops. Keys are of y; alive tokens have z > -inf. A peak is
 * the largest y of a thread, if that is alive. */
struct block_facts {
    uint32_t flags, alive;
    uint32_t peaks, highest, lowest; /* how many peaks; the largest and the least of them */
    uint32_t missing;                /* the largest top of blocks that are not stored */

    static __device__ __forceinline__ block_facts none()
    {
        return {0, 0, 0, 0, ~0u, gumbel_key(-INFINITY)};
    }

    __device__ __forceinline__ void join_warp()
    {
        flags = __reduce_or_sync(~0u, flags);
        alive = __reduce_add_sync(~0u, alive);
        peaks = __reduce_add_sync(~0u, peaks);
        highest = __reduce_max_sync(~0u, highest);
        lowest = __reduce_min_sync(~0u, lowest);
        missing = __reduce_max_sync(~0u, missing);
    }

    /* The largest peak, -inf where there is none. */
    __device__ __forceinline__ float largest() const
    {
        return peaks > 0 ? gumbel_of_key(highest) : -INFINITY;
    }
};

/* What all threads have, joined, for all of them. */
__device__ __noinline__ block_facts join_facts(block_facts own) { return cta_over(own); }

/* A y that `wanted` threads' peaks reach, halved into; -inf where there are fewer. `peak` is this
 * thread's, `all` what is known of all. For all threads. */
__device__ __noinline__ float reached_by_tops(const block_facts &all, float peak, int wanted)
{
    if ((int)all.peaks < wanted)
        return -INFINITY;
    return halve_peaks<kTopSlack>(gumbel_of_key(all.lowest), gumbel_of_key(all.highest), peak,
                                  wanted);
}

/* y of four logits from a token on; out of line, as that is rare. */
__device__ __noinline__ four edit_four(int64_t b, int64_t token, four l)
{
    const cuda_request_params &p = room().call;
    part_reader reader = {p, room().row, room().stage, b, p.problem.end_token};
    reader.make_quad(token, l.v);
    return l;
}

/* What was seen of some tokens; alive ones are those that went into the list. */
struct tokens_seen {
    uint32_t flags, alive;
    float largest; /* y; NaN counts for nothing */
};

/* Put those of four y into the list that have a z of `least` or more. */
__device__ __noinline__ tokens_seen list_four(request_values values, int32_t token, four y,
                                              float least)
{
    tokens_seen seen = {0, 0, -INFINITY};
    uint32_t reach = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float z = values.z(y.v[i]);
        seen.largest = fmaxf(seen.largest, y.v[i]);
        if (!(z < INFINITY))
            seen.flags |= isnan(z) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE;
        reach |= (uint32_t)(z >= least && z > -INFINITY) << i;
    }
    seen.alive = __popc(reach);
    uint32_t place = atomicAdd(&room().count, seen.alive);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (reach >> i & 1) {
            if (place < kSome)
                room().bench.list[place] = {y.v[i], token + i};
            place++;
        }
    return seen;
}

/* A row, block by block, for all threads of a CTA. */
struct row_blocks {
    const part_reader &reader;
    request_values values;
    int count;        /* of blocks */
    float *tops;      /* of each block, in shared memory: a y that none of its tokens is above */
    int *chosen;      /* blocks to look into, likewise; then how many */
    float peak;       /* this thread's largest top */
    uint32_t lacking; /* of the peaks that were loaded last, those of blocks that are not stored */

    /* A block's first token, and this lane's first one. */
    __device__ __forceinline__ int64_t start_of(int block) const
    {
        return CUDA_REQUEST_ORIGIN(reader.p.problem.first_token) + (int64_t)block * kBlock;
    }
    __device__ __forceinline__ int64_t token_of(int block) const
    {
        return start_of(block) + 4 * (threadIdx.x % 32);
    }

    /* Whether the mask leaves any token of a block, or of those that share words with it. */
    __device__ __forceinline__ bool allows(int block) const
    {
        const gumbel_problem &q = reader.p.problem;
        if (!(q.request & GUMBEL_REQUEST_MASK) || reader.p.written) /* peaks know of masks */
            return true;
        const int32_t *words = gumbel_problem_mask(&q, reader.b);
        int64_t from = start_of(block), to = min(from + kBlock, reader.end);
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
    __device__ __forceinline__ void load_peaks(int first, float (&own)[kTopsAhead])
    {
        const float *peaks = reader.p.peaks + reader.b * reader.p.blocks;
        lacking = 0;
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            int i = first + j * kThreads;
            own[j] = i < count && allows(i) ? __ldcg(&peaks[i]) : -INFINITY;
            lacking |= (uint32_t)(i < count && !block_is_stored(reader.p, reader.b, i)) << j;
        }
    }

    /* A y that no token of a block is above, where logits are scaled. */
    __device__ __forceinline__ float top_of(float of_block) const
    {
        if (of_block == -INFINITY)
            return of_block;
        float top = request_scaled(reader.p, of_block);
        return reader.p.problem.soft_cap == 0.0f ? top : top + fabsf(top) * kCapSlack;
    }

    /* Find the tops, of which `own` are this thread's first peaks; what it knows of its own. Flags
     * tell that a block may hold a NaN or +inf. */
    __device__ __forceinline__ block_facts find_tops(float (&own)[kTopsAhead])
    {
        const gumbel_problem &q = reader.p.problem;
        const bool scaled = q.scale != 1.0f || q.soft_cap != 0.0f;
        bool infinite = false;
        float missing = -INFINITY;
        peak = -INFINITY;
#pragma unroll 1
        for (int first = threadIdx.x; first < count; first += kTopsAhead * kThreads) {
            if (first != (int)threadIdx.x)
                load_peaks(first, own);
#pragma unroll
            for (int j = 0; j < kTopsAhead; j++) {
                float top = scaled ? top_of(own[j]) : own[j];
                if (first + j * kThreads < count)
                    tops[first + j * kThreads] = top;
                infinite |= !(values.z(top) < INFINITY);
                peak = fmaxf(peak, top);
                missing = fmaxf(missing, lacking >> j & 1 ? top : -INFINITY);
            }
        }
        block_facts facts = block_facts::none();
        facts.flags = infinite;
        add_peak(facts, peak);
        facts.missing = gumbel_key(missing);
        return facts;
    }

    /* Add this thread's largest y. */
    __device__ __forceinline__ void add_peak(block_facts &facts, float y) const
    {
        if (values.z(y) > -INFINITY) {
            facts.highest = facts.lowest = gumbel_key(y);
            facts.peaks = 1;
        }
    }

    /* Choose the blocks that may hold a z from `least` on; how many, which may be more than fit. */
    __device__ __forceinline__ int choose(float least) const
    {
#pragma unroll 1
        for (int first = threadIdx.x; first < count; first += kTopsAhead * kThreads) {
            uint32_t reach = 0;
#pragma unroll
            for (int j = 0; j < kTopsAhead; j++) {
                int i = first + j * kThreads;
                float z = i < count ? values.z(tops[i]) : -INFINITY;
                reach |= (uint32_t)(!(z < least) && z != -INFINITY) << j;
            }
            if (!reach)
                continue;
            int at = atomicAdd(&chosen[kBlocksMost], __popc(reach));
#pragma unroll
            for (int j = 0; j < kTopsAhead; j++)
                if (reach >> j & 1) {
                    if (at < kBlocksMost)
                        chosen[at] = first + j * kThreads;
                    at++;
                }
        }
        __syncthreads();
        return chosen[kBlocksMost];
    }

    /* Start with no blocks and no tokens, by one thread, before a barrier. */
    __device__ __forceinline__ void start() const
    {
        room().count = 0;
        chosen[kBlocksMost] = 0;
    }

    /* Put the tokens of the first `blocks` chosen ones whose z is `least` or more into the list;
     * what this thread saw, and its largest y. */
    __device__ __forceinline__ block_facts look(int blocks, float least, float &largest) const
    {
        const gumbel_problem &q = reader.p.problem;
        const bool plain = q.scale == 1.0f && q.soft_cap == 0.0f &&
                           !(q.request & GUMBEL_REQUEST_TRANSFORMS);
        block_facts facts = block_facts::none();
        largest = -INFINITY;
#pragma unroll 1
        for (int at = threadIdx.x / 32; at < blocks; at += kWarps * kBlocksAhead) {
            int64_t tokens[kBlocksAhead];
            four l[kBlocksAhead];
#pragma unroll
            for (int i = 0; i < kBlocksAhead; i++)
                tokens[i] = at + i * kWarps < blocks ? token_of(chosen[at + i * kWarps]) : -1;
            if (q.logits.dtype == GUMBEL_FLOAT32)
                load_blocks<GUMBEL_FLOAT32>(tokens, l);
            else if (q.logits.dtype == GUMBEL_BFLOAT16)
                load_blocks<GUMBEL_BFLOAT16>(tokens, l);
            else
                load_blocks<GUMBEL_FLOAT16>(tokens, l);
#pragma unroll
            for (int i = 0; i < kBlocksAhead; i++) {
                if (tokens[i] < 0)
                    continue;
                if (!plain)
                    l[i] = edit_four(reader.b, tokens[i], l[i]);
                float high = largest_of(l[i]); /* NaN where one is */
                largest = fmaxf(largest, high);
                if (values.z(high) < least)
                    continue;
                tokens_seen seen = list_four(values, (int32_t)tokens[i], l[i], least);
                largest = fmaxf(largest, seen.largest);
                facts.alive += seen.alive;
                facts.flags |= seen.flags;
            }
        }
        add_peak(facts, largest);
        return facts;
    }

  private:
    /* Logits from each of the tokens on that are not negative. */
    template <gumbel_dtype dtype>
    __device__ __forceinline__ void load_blocks(const int64_t (&tokens)[kBlocksAhead],
                                                four (&l)[kBlocksAhead]) const
    {
        const gumbel_problem &q = reader.p.problem;
        const void *origin = request_origin(q, reader.b);
#pragma unroll
        for (int i = 0; i < kBlocksAhead; i++)
            if (tokens[i] >= 0)
                l[i] = request_load_quad<dtype>(origin, tokens[i], q.first_token, reader.end);
    }
};

} // namespace

#endif
