/* SPDX-License-Identifier: Apache-2.0
 *
 * The largest logits of a row's blocks, by one CTA: its threads have the tops of some blocks each,
 * which bound what their tokens can be, and agree on what as many of them reach as are wanted. A
 * warp shows its largest; of those of all warps, each thread ranks one. That takes two barriers.
 */
#ifndef GUMBEL_CUDA_REQUEST_BLOCK_TOPS_CUH
#define GUMBEL_CUDA_REQUEST_BLOCK_TOPS_CUH

#include "cuda/common/row_thresholds.cuh"
#include "cuda/request/few/request_peaks.cuh"

namespace
{

constexpr int kBlock = CUDA_REQUEST_BLOCK;
static_assert(kBlock == 4 * 32, "a warp reads a block, a lane four tokens");
/* Tops that a thread has at a time, and blocks that a CTA has in such a turn. */
constexpr int kTopsAhead = 3, kTurn = kTopsAhead * kThreads;
/* Of a turn's blocks, those that a warp looks into for a guess at most. */
constexpr int kBlocksMost = CUDA_REQUEST_SELECTED_BLOCKS / kWarps;
/* Tops that a warp shows beyond its part of those wanted, and all that it may show: as many are
 * wanted as blocks_guessed() says. With two spare ones, a bound for 50 is reached by 53. */
constexpr int kBestSpare = 2;
constexpr int kBestMost = (CUDA_REQUEST_TOP_MAX * 5 / 4 + 8) / kWarps + kBestSpare;
/* What a soft-cap may put a smaller logit above a larger one by, of its value. */
constexpr float kCapSlack = 0x1p-16f;

/* What is rare goes behind what is not: instructions that follow each other are there when they are
 * wanted, and others take a latency of memory. */
__device__ __forceinline__ bool is_rare(bool known) { return __builtin_expect(known, false); }

/* What a CTA holds of a row's blocks, beside team_shared. */
struct block_shared {
    request_wanted wanted;
    uint32_t quads;    /* that may hold tokens which reach a guess */
    uint32_t strips;   /* of blocks that may */
    uint32_t seen;     /* key of the largest y of tokens that reached a guess before edits */
    uint32_t nth, top; /* those of the best that a guess goes by; 0 where they are fewer */
    __align__(16) uint32_t best[kBestMost * kWarps];     /* of each warp, as row_blocks.key_of() */
    __align__(16) uint16_t chosen[kWarps * kBlocksMost]; /* by each warp, to look into */
};
static_assert(sizeof(block_shared) <= 4 * (CUDA_REQUEST_SELECTED_BLOCKS + 1),
              "the launcher reserves that");

__device__ __forceinline__ block_shared &shared_of_blocks()
{
    return *(block_shared *)(memory_of_cta() + CUDA_CLUSTER_SHARED_BYTES);
}

/* Of each block: a y that none of its tokens is above. */
__device__ __forceinline__ float *tops_of_blocks()
{
    return (float *)(memory_of_cta() + CUDA_CLUSTER_SHARED_BYTES) + CUDA_REQUEST_SELECTED_BLOCKS +
           1;
}

__device__ __forceinline__ bool is_scaled(const gumbel_problem &q)
{
    return q.scale != 1.0f || q.soft_cap != 0.0f;
}

/* Peaks of blocks that a thread has at a time, or the tops that follow from them. */
struct turn_tops {
    float of[kTopsAhead];
};

/* What a product has left of some blocks. */
struct turn_blocks {
    turn_tops peaks, unseen;     /* of all tokens; of those that no penalty lowers, or the same */
    uint32_t strips[kTopsAhead]; /* that are stored, as load_stored() */
};

/* The top of a block or quad whose largest logit is l, where logits are scaled. */
__device__ __noinline__ float scale_top(float l)
{
    const cuda_request_params &p = shared().call;
    const float slack = p.problem.soft_cap == 0.0f ? 0.0f : kCapSlack;
    float top = l == -INFINITY ? l : scaled_logit(p, l);
    return fabsf(top) < INFINITY ? top + fabsf(top) * slack : top;
}

/* Tops of these peaks, where logits are scaled. */
__device__ __noinline__ turn_tops scale_tops(turn_tops peaks)
{
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        peaks.of[j] = scale_top(peaks.of[j]);
    return peaks;
}

/* What a thread knows of tops. */
struct tops_found {
    bool infinite;             /* a block may hold a NaN or +inf */
    uint32_t best[kTopsAhead]; /* the largest, as keys, in order */

    /* Keep a key if it is one of the best. */
    __device__ __forceinline__ void keep(uint32_t key)
    {
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            uint32_t larger = max(best[j], key);
            key = min(best[j], key);
            best[j] = larger;
        }
    }

    /* The warp's largest key, which is then no longer among the best. */
    __device__ __forceinline__ uint32_t pop_of_warp()
    {
        uint32_t key = __reduce_max_sync(~0u, best[0]);
        if (best[0] == key) {
#pragma unroll
            for (int j = 0; j < kTopsAhead; j++)
                best[j] = j + 1 < kTopsAhead ? best[j + 1] : 0;
        }
        return key;
    }
};

/* Show the largest keys of each warp, `each` of them; before a barrier. */
__device__ __forceinline__ void show_best(tops_found found, int each)
{
#pragma unroll 1
    for (int i = 0; i < each; i++) {
        uint32_t key = found.pop_of_warp();
        if (threadIdx.x % 32 == 0)
            shared_of_blocks().best[i * kWarps + threadIdx.x / 32] = key;
    }
}

/* Find two of the keys that warps showed, by their ranks from 1 on: four lanes compare one with
 * all. Between barriers. */
__device__ __forceinline__ void rank_best(int each, int top, int n)
{
    block_shared &x = shared_of_blocks();
#pragma unroll 1
    for (int i = threadIdx.x / 4; i < each * kWarps; i += kThreads / 4) {
        uint32_t own = x.best[i], above = 0;
#pragma unroll 2
        for (int at = threadIdx.x % 4; at < each * kWarps / 4; at += 4) {
            uint4 other = ((const uint4 *)x.best)[at];
            above += (other.x > own) + (other.y > own);
            above += (other.z > own) + (other.w > own);
        }
        above += __shfl_xor_sync(~0u, above, 1);
        above += __shfl_xor_sync(~0u, above, 2);
        if (threadIdx.x % 4 == 0 && above == top - 1)
            x.top = own;
        if (threadIdx.x % 4 == 0 && above == n - 1)
            x.nth = own;
    }
}

/* Show the largest of each warp's peaks that no penalty lowers; before a barrier. */
__device__ __forceinline__ void show_largest(const turn_blocks &loaded)
{
    uint32_t key = 0;
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        key = max(key, gumbel_key(loaded.unseen.of[j]));
    key = __reduce_max_sync(~0u, key);
    if (threadIdx.x % 32 == 0)
        shared_of_blocks().best[threadIdx.x / 32] = key;
}

/* The largest that warps have shown. */
__device__ __forceinline__ float largest_shown()
{
    uint32_t key = 0;
#pragma unroll
    for (int i = 0; i < kWarps / 4; i++) {
        const uint4 own = ((const uint4 *)shared_of_blocks().best)[i];
        key = max(max(max(key, own.x), max(own.y, own.z)), own.w);
    }
    return gumbel_of_key(key);
}

/* A row, block by block, for all threads of a CTA. */
struct row_blocks {
    int64_t b;
    int count;             /* of blocks */
    int first;             /* of this thread's; others are kThreads apart */
    request_values values; /* once the row is described */

    /* Large tops tend to be close: so few neighbours are with a warp, but as many as lie in a
     * sector where there are many blocks. */
    __device__ __forceinline__ row_blocks(int64_t row, int blocks) : b(row), count(blocks)
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        first =
            count > kThreads ? lane / 8 * (8 * kWarps) + 8 * warp + lane % 8 : lane * kWarps + warp;
    }

    static __device__ __forceinline__ const cuda_request_params &call() { return shared().call; }

    /* A block of this thread. */
    __device__ __forceinline__ int own_block(int turn, int j) const
    {
        return first + turn + j * kThreads;
    }

    /* A block's first token, and that of this lane. */
    static __device__ __forceinline__ int64_t start_of(int block)
    {
        return CUDA_REQUEST_ORIGIN(call().problem.first_token) + (int64_t)block * kBlock;
    }
    static __device__ __forceinline__ int64_t token_of(int block)
    {
        return start_of(block) + 4 * (threadIdx.x % 32);
    }

    /* Whether the mask leaves any token of a block, or of those that share words with it; of the
     * last one where there is none. */
    __device__ __forceinline__ bool allows(int block) const
    {
        const gumbel_problem &q = call().problem;
        const int32_t *words = gumbel_problem_mask(&q, b);
        int64_t from = start_of(min(block, count - 1)), to = min(from + kBlock, q.end_token);
        int32_t any = 0;
#pragma unroll
        for (int i = 0; i <= kBlock / 32; i++) { /* side by side */
            int64_t at = (from >> 5) + i;
            any |= at <= (to - 1) >> 5 ? words[at] : 0;
        }
        return any != 0;
    }

    __device__ __forceinline__ turn_tops load_peaks(const float *peaks, int turn) const
    {
        turn_tops found;
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            int block = own_block(turn, j);
            found.of[j] = block < count ? __ldcg(&peaks[b * call().blocks + block]) : -INFINITY;
        }
        return found;
    }

    /* Ask for what is known of a turn's blocks, where that is wanted with peaks of what no penalty
     * lowers. */
    __device__ __forceinline__ turn_blocks load(int turn, bool with_unseen = true) const
    {
        turn_blocks found;
        found.peaks = found.unseen = load_peaks(call().block_maxima, turn);
        if (call().unseen_block_maxima && with_unseen)
            found.unseen = load_peaks(call().unseen_block_maxima, turn);
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            int block = own_block(turn, j);
            found.strips[j] =
                block < count ? load_stored(call(), b, block) : CUDA_REQUEST_ALL_SUBTILES;
        }
        return found;
    }

    /* The bits of a key that tell its block. */
    __device__ __forceinline__ uint32_t block_bits() const { return ~0u >> __clz(count); }

    /* A key of a block's top, a bit less than it, and of no other block; 0 if none of its tokens
     * can be drawn. */
    __device__ __forceinline__ uint32_t key_of(float top, int block) const
    {
        uint32_t key = (gumbel_key(top) & ~block_bits()) | block;
        return values.z(top) > -INFINITY ? key : 0;
    }

    /* What such a key tells of the top. */
    __device__ __forceinline__ float top_of_key(uint32_t key) const
    {
        return key > 0 ? gumbel_of_key(key & ~block_bits()) : -INFINITY;
    }

    /* Of each block, in shared memory: its strips that are stored. */
    __device__ __forceinline__ uint8_t *strips() const
    {
        return (uint8_t *)(tops_of_blocks() + count);
    }

    /* Whether the tokens of a block that are this lane's are stored; others may be anything. */
    __device__ __forceinline__ bool holds(int block) const
    {
        return strips()[block] >> threadIdx.x % 32 / (CUDA_REQUEST_SUBTILE / 4) & 1;
    }

    /* Keep the tops of a turn, and what is stored, and join what is known of them into `found`: of
     * its best, those that no penalty lowers. */
    __device__ __forceinline__ void keep_tops(int turn, const turn_blocks &loaded,
                                              tops_found &found) const
    {
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            int block = own_block(turn, j);
            if (block < count) {
                tops_of_blocks()[block] = loaded.peaks.of[j];
                strips()[block] = (uint8_t)loaded.strips[j];
            }
            found.infinite |= !(values.z(loaded.peaks.of[j]) < INFINITY);
            found.keep(key_of(loaded.unseen.of[j], block));
        }
    }

    /* The bound that the product had of the row in the end; -inf where it had none. */
    __device__ __forceinline__ float bound() const
    {
        const uint64_t floor = load_threshold(&call().row_thresholds[CUDA_THRESHOLD_WORDS * b]);
        return floor ? unpack_threshold(floor) : -INFINITY;
    }

    /* This thread's tops of a turn. */
    __device__ __forceinline__ turn_tops own_tops(int turn) const
    {
        turn_tops found;
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            int block = own_block(turn, j);
            found.of[j] = block < count ? tops_of_blocks()[block] : -INFINITY;
        }
        return found;
    }

    /* This thread's largest top. */
    __device__ __forceinline__ float largest_top() const
    {
        float largest = -INFINITY;
#pragma unroll 1
        for (int turn = 0; turn < count; turn += kTurn) {
            const turn_tops tops = own_tops(turn);
#pragma unroll
            for (int j = 0; j < kTopsAhead; j++)
                largest = fmaxf(largest, tops.of[j]);
        }
        return largest;
    }

    /* Start with no tokens, by one thread, before a barrier. */
    static __device__ __forceinline__ void start()
    {
        shared().count = 0;
        shared_of_blocks().quads = shared_of_blocks().strips = 0;
        shared_of_blocks().seen = gumbel_key(-INFINITY);
    }
};

/* Drop the tops of a turn's blocks of which the mask leaves nothing. */
__device__ __noinline__ turn_tops drop_masked(row_blocks blocks, int turn, turn_tops tops)
{
    bool allowed[kTopsAhead];
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        allowed[j] = blocks.allows(blocks.own_block(turn, j));
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        tops.of[j] = allowed[j] ? tops.of[j] : -INFINITY;
    return tops;
}

/* Drop those of blocks of which nothing is stored. Of others, the strip of the top is. */
__device__ __forceinline__ void drop_missing(turn_blocks &loaded)
{
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++) {
        bool stored = loaded.strips[j] != 0;
        loaded.peaks.of[j] = stored ? loaded.peaks.of[j] : -INFINITY;
        loaded.unseen.of[j] = stored ? loaded.unseen.of[j] : -INFINITY;
    }
}

/* Find the tops of a turn, whose blocks are `some`. Peaks of products that leave out strips know of
 * masks. */
__device__ __forceinline__ void find_tops(const row_blocks &blocks, int turn, turn_blocks loaded,
                                          tops_found &found)
{
    const cuda_request_params &p = shared().call;
    if (is_rare(is_scaled(p.problem))) {
        loaded.peaks = scale_tops(loaded.peaks);
        loaded.unseen = scale_tops(loaded.unseen);
    }
    if (p.stored_subtiles)
        drop_missing(loaded);
    else if (is_rare(p.problem.request & GUMBEL_REQUEST_MASK))
        loaded.peaks = loaded.unseen = drop_masked(blocks, turn, loaded.peaks);
    blocks.keep_tops(turn, loaded, found);
}

/* Those of all turns but the first. */
__device__ __noinline__ tops_found find_later_tops(row_blocks blocks, tops_found found)
{
#pragma unroll 1
    for (int turn = kTurn; turn < blocks.count; turn += kTurn)
        find_tops(blocks, turn, blocks.load(turn), found);
    return found;
}

/* A y that `wanted` threads' own ones reach, halved into; -inf where there are fewer. For all
 * threads. */
__device__ __noinline__ float reached_by_threads(request_values values, float own, int wanted)
{
    team_facts facts = team_facts::none();
    if (values.z(own) > -INFINITY) {
        facts.highest = facts.lowest = gumbel_key(own);
        facts.peaks = 1;
    }
    uint32_t key = reached_by_peaks(facts, own, wanted);
    return key > 0 ? gumbel_of_key(key) : -INFINITY;
}

} // namespace

#endif
