/* SPDX-License-Identifier: Apache-2.0
 *
 * The largest logits of a row's blocks, by one CTA: its threads have the tops of some blocks each,
 * which bound what their tokens can be, and agree on what as many of them reach as are wanted. A
 * warp shows its largest; of those of all warps, each thread ranks one. That takes two barriers.
 */
#ifndef GUMBEL_CUDA_REQUEST_BLOCK_TOPS_CUH
#define GUMBEL_CUDA_REQUEST_BLOCK_TOPS_CUH

#include "cuda/common/row_thresholds.cuh"
#include "cuda/request/few/request_maxima.cuh"

namespace
{

constexpr int kBlock = CUDA_REQUEST_BLOCK;
static_assert(kBlock == 4 * 32, "a warp reads a block, a lane four tokens");
/* Tops that a thread has at a time, and blocks that a CTA has in such a turn. */
constexpr int kTopsAhead = 3, kTurnBlocks = kTopsAhead * kThreads;
/* Of a turn's blocks, those that a warp looks into for a guess at most. */
constexpr int kBlocksMax = CUDA_REQUEST_SELECTED_BLOCKS / kWarps;
/* Tops that a warp shows beyond its part of those wanted, and all that it may show: as many are
 * wanted as count_guessed_blocks() says. With two spare ones, a bound for 50 is reached by 53. */
constexpr int kBestSpare = 2;
constexpr int kBestMax = (CUDA_REQUEST_TOP_MAX * 5 / 4 + 8) / kWarps + kBestSpare;
/* What a soft-cap may put a smaller logit above a larger one by, of its value. */
constexpr float kCapSlack = 0x1p-16f;

/* What is rare goes behind what is not: instructions that follow each other are there when they are
 * wanted, and others take a latency of memory. */
__device__ __forceinline__ bool is_rare(bool known) { return __builtin_expect(known, false); }

/* What a CTA holds of a row's blocks, beside row_shared. */
struct block_scratch {
    required_tokens required;
    uint32_t quads;    /* that may hold tokens which reach a guess */
    uint32_t subtiles; /* of blocks that may */
    uint32_t seen;     /* key of the largest y of tokens that reached a guess before edits */
    uint32_t nth, top; /* those of the best that a guess goes by; 0 where they are fewer */
    __align__(16) uint32_t best[kBestMax * kWarps];       /* of each warp, as row_blocks.key_of() */
    __align__(16) uint16_t selected[kWarps * kBlocksMax]; /* by each warp, to look into */
};
static_assert(sizeof(block_scratch) <= 4 * (CUDA_REQUEST_SELECTED_BLOCKS + 1),
              "the launcher reserves that");

__device__ __forceinline__ block_scratch &block_state()
{
    return *(block_scratch *)(memory_of_cta() + CUDA_CLUSTER_SHARED_BYTES);
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
    float values[kTopsAhead];
};

/* What a product has left of some blocks. */
struct loaded_blocks {
    turn_tops maxima, unseen;      /* of all tokens; of those that no penalty lowers, or the same */
    uint32_t subtiles[kTopsAhead]; /* that are stored, as load_stored() */
};

/* The top of a block or quad whose largest logit is l, where logits are scaled. */
__device__ __noinline__ float scale_top(float l)
{
    const cuda_request_params &p = shared_state().call;
    const float slack = p.problem.soft_cap == 0.0f ? 0.0f : kCapSlack;
    float top = l == -INFINITY ? l : scaled_logit(p, l);
    return fabsf(top) < INFINITY ? top + fabsf(top) * slack : top;
}

/* Tops of these peaks, where logits are scaled. */
__device__ __noinline__ turn_tops scale_tops(turn_tops maxima)
{
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        maxima.values[j] = scale_top(maxima.values[j]);
    return maxima;
}

/* What a thread knows of tops. */
struct tops_found {
    bool infinite;             /* a block may hold a NaN or +inf */
    uint32_t best[kTopsAhead]; /* the largest, as keys, in order */

    /* Keep a key if it is one of the best. */
    __device__ __forceinline__ void add(uint32_t key)
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
__device__ __forceinline__ void publish_best(tops_found found, int each)
{
#pragma unroll 1
    for (int i = 0; i < each; i++) {
        uint32_t key = found.pop_of_warp();
        if (threadIdx.x % 32 == 0)
            block_state().best[i * kWarps + threadIdx.x / 32] = key;
    }
}

/* Find two of the keys that warps showed, by their ranks from 1 on: four lanes compare one with
 * all. Between barriers. */
__device__ __forceinline__ void select_two_best(int each, int top, int n)
{
    block_scratch &x = block_state();
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
__device__ __forceinline__ void publish_largest(const loaded_blocks &loaded)
{
    uint32_t key = 0;
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        key = max(key, gumbel_key(loaded.unseen.values[j]));
    key = __reduce_max_sync(~0u, key);
    if (threadIdx.x % 32 == 0)
        block_state().best[threadIdx.x / 32] = key;
}

/* The largest that warps have shown. */
__device__ __forceinline__ float read_published_largest()
{
    uint32_t key = 0;
#pragma unroll
    for (int i = 0; i < kWarps / 4; i++) {
        const uint4 own = ((const uint4 *)block_state().best)[i];
        key = max(max(max(key, own.x), max(own.y, own.z)), own.w);
    }
    return gumbel_of_key(key);
}

/* A row, block by block, for all threads of a CTA. */
struct row_blocks {
    int64_t b;
    int count;           /* of blocks */
    int first;           /* of this thread's; others are kThreads apart */
    logit_values values; /* once the row is described */

    /* Large tops tend to be close: so few neighbours are with a warp, but as many as lie in a
     * sector where there are many blocks. */
    __device__ __forceinline__ row_blocks(int64_t row, int blocks) : b(row), count(blocks)
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        first =
            count > kThreads ? lane / 8 * (8 * kWarps) + 8 * warp + lane % 8 : lane * kWarps + warp;
    }

    static __device__ __forceinline__ const cuda_request_params &call_params()
    {
        return shared_state().call;
    }

    /* A block of this thread. */
    __device__ __forceinline__ int own_block(int turn, int j) const
    {
        return first + turn + j * kThreads;
    }

    /* A block's first token, and that of this lane. */
    static __device__ __forceinline__ int64_t start_of(int block)
    {
        return CUDA_REQUEST_ORIGIN(call_params().problem.first_token) + (int64_t)block * kBlock;
    }
    static __device__ __forceinline__ int64_t token_of(int block)
    {
        return start_of(block) + 4 * (threadIdx.x % 32);
    }

    /* Whether the mask leaves any token of a block, or of those that share words with it; of the
     * last one where there is none. */
    __device__ __forceinline__ bool mask_allows(int block) const
    {
        const gumbel_problem &q = call_params().problem;
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

    __device__ __forceinline__ turn_tops load_maxima(const float *maxima, int turn) const
    {
        turn_tops found;
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            int block = own_block(turn, j);
            found.values[j] =
                block < count ? __ldcg(&maxima[b * call_params().blocks + block]) : -INFINITY;
        }
        return found;
    }

    /* Ask for what is known of a turn's blocks, where that is wanted with peaks of what no penalty
     * lowers. */
    __device__ __forceinline__ loaded_blocks load(int turn, bool with_unseen = true) const
    {
        loaded_blocks found;
        found.maxima = found.unseen = load_maxima(call_params().block_maxima, turn);
        if (call_params().unseen_block_maxima && with_unseen)
            found.unseen = load_maxima(call_params().unseen_block_maxima, turn);
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            int block = own_block(turn, j);
            found.subtiles[j] =
                block < count ? load_stored(call_params(), b, block) : CUDA_REQUEST_ALL_SUBTILES;
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
        return values.to_z(top) > -INFINITY ? key : 0;
    }

    /* What such a key tells of the top. */
    __device__ __forceinline__ float top_of_key(uint32_t key) const
    {
        return key > 0 ? gumbel_of_key(key & ~block_bits()) : -INFINITY;
    }

    /* Of each block, in shared memory: its strips that are stored. */
    __device__ __forceinline__ uint8_t *stored_bits() const
    {
        return (uint8_t *)(tops_of_blocks() + count);
    }

    /* Whether the tokens of a block that are this lane's are stored; others may be anything. */
    __device__ __forceinline__ bool is_stored(int block) const
    {
        return stored_bits()[block] >> threadIdx.x % 32 / (CUDA_REQUEST_SUBTILE / 4) & 1;
    }

    /* Keep the tops of a turn, and what is stored, and join what is known of them into `found`: of
     * its best, those that no penalty lowers. */
    __device__ __forceinline__ void store_tops(int turn, const loaded_blocks &loaded,
                                               tops_found &found) const
    {
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            int block = own_block(turn, j);
            if (block < count) {
                tops_of_blocks()[block] = loaded.maxima.values[j];
                stored_bits()[block] = (uint8_t)loaded.subtiles[j];
            }
            found.infinite |= !(values.to_z(loaded.maxima.values[j]) < INFINITY);
            found.add(key_of(loaded.unseen.values[j], block));
        }
    }

    /* The bound that the product had of the row in the end; -inf where it had none. */
    __device__ __forceinline__ float load_bound() const
    {
        const uint64_t word =
            load_threshold(&call_params().row_thresholds[CUDA_THRESHOLD_WORDS * b]);
        return word ? unpack_threshold(word) : -INFINITY;
    }

    /* This thread's tops of a turn. */
    __device__ __forceinline__ turn_tops own_tops(int turn) const
    {
        turn_tops found;
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            int block = own_block(turn, j);
            found.values[j] = block < count ? tops_of_blocks()[block] : -INFINITY;
        }
        return found;
    }

    /* This thread's largest top. */
    __device__ __forceinline__ float largest_top() const
    {
        float largest = -INFINITY;
#pragma unroll 1
        for (int turn = 0; turn < count; turn += kTurnBlocks) {
            const turn_tops tops = own_tops(turn);
#pragma unroll
            for (int j = 0; j < kTopsAhead; j++)
                largest = fmaxf(largest, tops.values[j]);
        }
        return largest;
    }

    /* Start with no tokens, by one thread, before a barrier. */
    static __device__ __forceinline__ void start()
    {
        shared_state().count = 0;
        block_state().quads = block_state().subtiles = 0;
        block_state().seen = gumbel_key(-INFINITY);
    }
};

/* Drop the tops of a turn's blocks of which the mask leaves nothing. */
__device__ __noinline__ turn_tops drop_masked(row_blocks blocks, int turn, turn_tops tops)
{
    bool allowed[kTopsAhead];
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        allowed[j] = blocks.mask_allows(blocks.own_block(turn, j));
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        tops.values[j] = allowed[j] ? tops.values[j] : -INFINITY;
    return tops;
}

/* Drop those of blocks of which nothing is stored. Of others, the strip of the top is. */
__device__ __forceinline__ void drop_unstored(loaded_blocks &loaded)
{
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++) {
        bool stored = loaded.subtiles[j] != 0;
        loaded.maxima.values[j] = stored ? loaded.maxima.values[j] : -INFINITY;
        loaded.unseen.values[j] = stored ? loaded.unseen.values[j] : -INFINITY;
    }
}

/* Find the tops of a turn, whose blocks are `some`. Peaks of products that leave out strips know of
 * masks. */
__device__ __forceinline__ void find_tops(const row_blocks &blocks, int turn, loaded_blocks loaded,
                                          tops_found &found)
{
    const cuda_request_params &p = shared_state().call;
    if (is_rare(is_scaled(p.problem))) {
        loaded.maxima = scale_tops(loaded.maxima);
        loaded.unseen = scale_tops(loaded.unseen);
    }
    if (p.stored_subtiles)
        drop_unstored(loaded);
    else if (is_rare(p.problem.request & GUMBEL_REQUEST_MASK))
        loaded.maxima = loaded.unseen = drop_masked(blocks, turn, loaded.maxima);
    blocks.store_tops(turn, loaded, found);
}

/* Those of all turns but the first. */
__device__ __noinline__ tops_found find_later_tops(row_blocks blocks, tops_found found)
{
#pragma unroll 1
    for (int turn = kTurnBlocks; turn < blocks.count; turn += kTurnBlocks)
        find_tops(blocks, turn, blocks.load(turn), found);
    return found;
}

/* A y that `wanted` threads' own ones reach, halved into; -inf where there are fewer. For all
 * threads. */
__device__ __noinline__ float find_reached_by_threads(logit_values values, float own, int required)
{
    row_facts facts = row_facts::empty();
    if (values.to_z(own) > -INFINITY) {
        facts.highest = facts.lowest_max = gumbel_key(own);
        facts.num_maxima = 1;
    }
    uint32_t key = find_reached_key(facts, own, required);
    return key > 0 ? gumbel_of_key(key) : -INFINITY;
}

} // namespace

#endif
