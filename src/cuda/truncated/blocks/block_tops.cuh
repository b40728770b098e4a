/* SPDX-License-Identifier: Apache-2.0
 *
 * Tops of a row's blocks, by one CTA. The top of a block is an upper bound of the y of its tokens,
 * computed from its largest logit. Threads hold the tops of some blocks each and find a value that
 * enough tops reach: each warp publishes its largest tops, and the threads rank those, in two
 * barriers.
 */
#ifndef GUMBEL_CUDA_BLOCK_TOPS_CUH
#define GUMBEL_CUDA_BLOCK_TOPS_CUH

#include "cuda/common/row_thresholds.cuh"
#include "cuda/truncated/few/shortlist_maxima.cuh"

namespace
{

constexpr int kBlock = CUDA_MAXIMA_BLOCK;
static_assert(kBlock == 4 * 32, "a warp reads a block, a lane four tokens");
/* Tops that a thread holds at a time, and blocks that a CTA handles in such a turn. */
constexpr int kTopsAhead = 3, kTurnBlocks = kTopsAhead * kThreads;
/* Maximum number of blocks that a warp reads for a guess. */
constexpr int kBlocksMax = CUDA_SELECTED_BLOCKS_MAX / kWarps;
/* Tops that a warp publishes beyond its share of count_guessed_blocks(), and the maximum number
 * that it publishes. With two spare ones, 53 tops reach a bound for 50. */
constexpr int kBestSpare = 2;
constexpr int kBestMax = (CUDA_TRUNCATED_TOP_MAX * 5 / 4 + 8) / kWarps + kBestSpare;
/* Relative error of a soft-cap: how far it may place a smaller logit above a larger one. */
constexpr float kCapSlack = 0x1p-16f;

/* Rare code is placed after the usual path: consecutive instructions are prefetched, others take a
 * memory latency. */
__device__ __forceinline__ bool is_rare(bool known) { return __builtin_expect(known, false); }

/* State of a row's blocks, next to row_shared. */
struct block_scratch {
    required_tokens required;
    uint32_t quads;    /* quads that may hold tokens that reach the guess */
    uint32_t subtiles; /* subtiles that may hold such tokens */
    uint32_t seen;     /* key of the largest y among tokens that reached the guess before edits */
    uint32_t nth, top; /* keys from which a guess is made; 0: too few */
    /* largest tops of each warp, as row_blocks.key_of() */
    __align__(16) uint32_t best[kBestMax * kWarps];
    __align__(16) uint16_t selected[kWarps * kBlocksMax]; /* blocks to read, per warp */
};
static_assert(sizeof(block_scratch) <= 4 * (CUDA_SELECTED_BLOCKS_MAX + 1),
              "the launcher reserves that");

__device__ __forceinline__ block_scratch &block_state()
{
    return *(block_scratch *)(memory_of_cta() + CUDA_CLUSTER_SHARED_BYTES);
}

/* The top of each block. */
__device__ __forceinline__ float *tops_of_blocks()
{
    return (float *)(memory_of_cta() + CUDA_CLUSTER_SHARED_BYTES) + CUDA_SELECTED_BLOCKS_MAX + 1;
}

__device__ __forceinline__ bool is_scaled(const gumbel_problem &q)
{
    return q.scale != 1.0f || q.soft_cap != 0.0f;
}

/* Maxima or tops of a thread's blocks. */
struct turn_tops {
    float values[kTopsAhead];
};

/* Results of a product for a thread's blocks. */
struct loaded_blocks {
    turn_tops maxima, unseen;      /* of all tokens; of tokens that no penalty lowers, or of all */
    uint32_t subtiles[kTopsAhead]; /* bits of the stored subtiles, as load_stored() returns */
};

/* The top of a block or quad whose largest logit is l, with scaled logits. */
__device__ __noinline__ float scale_top(float l)
{
    const cuda_truncated_params &p = shared_state().call;
    const float slack = p.problem.soft_cap == 0.0f ? 0.0f : kCapSlack;
    float top = l == -INFINITY ? l : scale_logit(p, l);
    return fabsf(top) < INFINITY ? top + fabsf(top) * slack : top;
}

/* Tops from maxima, with scaled logits. */
__device__ __noinline__ turn_tops scale_tops(turn_tops maxima)
{
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        maxima.values[j] = scale_top(maxima.values[j]);
    return maxima;
}

/* The tops of a thread. */
struct tops_found {
    bool infinite;             /* a block may hold a NaN or +inf */
    uint32_t best[kTopsAhead]; /* keys of the largest ones, in order */

    /* Adds a key. */
    __device__ __forceinline__ void add(uint32_t key)
    {
#pragma unroll
        for (int j = 0; j < kTopsAhead; j++) {
            uint32_t larger = max(best[j], key);
            key = min(best[j], key);
            best[j] = larger;
        }
    }

    /* Removes and returns the warp's largest key. */
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

/* Publishes the `each` largest keys of each warp; before a barrier. */
__device__ __forceinline__ void publish_best(tops_found found, int each)
{
#pragma unroll 1
    for (int i = 0; i < each; i++) {
        uint32_t key = found.pop_of_warp();
        if (threadIdx.x % 32 == 0)
            block_state().best[i * kWarps + threadIdx.x / 32] = key;
    }
}

/* Finds the published keys with the ranks `top` and `n`, from 1 on: four lanes compare a key with
 * all others. Between barriers. */
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

/* Publishes the largest block maximum of each warp, of tokens that no penalty lowers; before a
 * barrier. */
__device__ __forceinline__ void publish_largest(const loaded_blocks &loaded)
{
    uint32_t key = 0;
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++)
        key = max(key, gumbel_key_of_value(loaded.unseen.values[j]));
    key = __reduce_max_sync(~0u, key);
    if (threadIdx.x % 32 == 0)
        block_state().best[threadIdx.x / 32] = key;
}

/* The largest value that warps have published. */
__device__ __forceinline__ float read_published_largest()
{
    uint32_t key = 0;
#pragma unroll
    for (int i = 0; i < kWarps / 4; i++) {
        const uint4 own = ((const uint4 *)block_state().best)[i];
        key = max(max(max(key, own.x), max(own.y, own.z)), own.w);
    }
    return gumbel_value_of_key(key);
}

/* A row as blocks, for all threads of a CTA. */
struct row_blocks {
    int64_t b;
    int count;           /* number of blocks */
    int first;           /* first block of this thread; the next are kThreads apart */
    logit_values values; /* set after describe_row() */

    /* Large tops tend to be adjacent, so neighbouring blocks go to different warps; in rows of many
     * blocks, a warp takes the eight blocks of a memory sector. */
    __device__ __forceinline__ row_blocks(int64_t row, int blocks) : b(row), count(blocks)
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        first =
            count > kThreads ? lane / 8 * (8 * kWarps) + 8 * warp + lane % 8 : lane * kWarps + warp;
    }

    static __device__ __forceinline__ const cuda_truncated_params &call_params()
    {
        return shared_state().call;
    }

    /* A block of this thread. */
    __device__ __forceinline__ int own_block(int turn, int j) const
    {
        return first + turn + j * kThreads;
    }

    /* The first token of a block, and of this lane's quad. */
    static __device__ __forceinline__ int64_t start_of(int block)
    {
        return CUDA_MAXIMA_ORIGIN(call_params().problem.first_token) + (int64_t)block * kBlock;
    }
    static __device__ __forceinline__ int64_t token_of(int block)
    {
        return start_of(block) + 4 * (threadIdx.x % 32);
    }

    /* Whether the mask allows any token in the mask words that overlap a block. Blocks past the end
     * count as the last block. */
    __device__ __forceinline__ bool mask_allows(int block) const
    {
        const gumbel_problem &q = call_params().problem;
        const int32_t *words = gumbel_problem_mask(&q, b);
        int64_t from = start_of(min(block, count - 1)), to = min(from + kBlock, q.end_token);
        int32_t any = 0;
#pragma unroll
        for (int i = 0; i <= kBlock / 32; i++) { /* loads in flight together */
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

    /* Loads the product's results for a turn's blocks; `with_unseen`: also the maxima of tokens
     * that no penalty lowers. */
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
                block < count ? load_stored(call_params(), b, block) : CUDA_ALL_SUBTILES;
        }
        return found;
    }

    /* The bits of a key that hold the index of the block. */
    __device__ __forceinline__ uint32_t block_bits() const { return ~0u >> __clz(count); }

    /* A unique key of a block's top, slightly below it; 0 if no token of the block can be drawn. */
    __device__ __forceinline__ uint32_t key_of(float top, int block) const
    {
        uint32_t key = (gumbel_key_of_value(top) & ~block_bits()) | block;
        return values.to_z(top) > -INFINITY ? key : 0;
    }

    /* The top of a key, rounded down. */
    __device__ __forceinline__ float top_of_key(uint32_t key) const
    {
        return key > 0 ? gumbel_value_of_key(key & ~block_bits()) : -INFINITY;
    }

    /* The stored subtiles of each block, as bits in shared memory. */
    __device__ __forceinline__ uint8_t *stored_bits() const
    {
        return (uint8_t *)(tops_of_blocks() + count);
    }

    /* Whether this lane's quad of a block is stored; unstored logits are arbitrary. */
    __device__ __forceinline__ bool is_stored(int block) const
    {
        return stored_bits()[block] >> threadIdx.x % 32 / (CUDA_SUBTILE / 4) & 1;
    }

    /* Stores the tops and stored subtiles of a turn, and adds the tops that no penalty lowers to
     * `found`. */
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

    /* The product's final bound of the row; -inf if it had none. */
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

    /* Clears the counts; by one thread, before a barrier. */
    static __device__ __forceinline__ void start()
    {
        shared_state().count = 0;
        block_state().quads = block_state().subtiles = 0;
        block_state().seen = gumbel_key_of_value(-INFINITY);
    }
};

/* Sets the tops of masked blocks to -inf. */
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

/* Sets the tops of blocks without a stored subtile to -inf. In other blocks, the subtile of the top
 * is stored. */
__device__ __forceinline__ void drop_unstored(loaded_blocks &loaded)
{
#pragma unroll
    for (int j = 0; j < kTopsAhead; j++) {
        bool stored = loaded.subtiles[j] != 0;
        loaded.maxima.values[j] = stored ? loaded.maxima.values[j] : -INFINITY;
        loaded.unseen.values[j] = stored ? loaded.unseen.values[j] : -INFINITY;
    }
}

/* Finds the tops of the blocks of a turn. A product that leaves out subtiles has applied the mask.
 */
__device__ __forceinline__ void find_tops(const row_blocks &blocks, int turn, loaded_blocks loaded,
                                          tops_found &found)
{
    const cuda_truncated_params &p = shared_state().call;
    if (is_rare(is_scaled(p.problem))) {
        loaded.maxima = scale_tops(loaded.maxima);
        loaded.unseen = scale_tops(loaded.unseen);
    }
    if (p.stored_subtiles)
        drop_unstored(loaded);
    else if (is_rare(p.problem.features & GUMBEL_FEATURE_MASK))
        loaded.maxima = loaded.unseen = drop_masked(blocks, turn, loaded.maxima);
    blocks.store_tops(turn, loaded, found);
}

/* The tops of all turns except the first. */
__device__ __noinline__ tops_found find_later_tops(row_blocks blocks, tops_found found)
{
#pragma unroll 1
    for (int turn = kTurnBlocks; turn < blocks.count; turn += kTurnBlocks)
        find_tops(blocks, turn, blocks.load(turn), found);
    return found;
}

/* A y that at least `required` threads' values reach, by bisection; -inf if there are fewer. For
 * all threads. */
__device__ __noinline__ float find_reached_by_threads(logit_values values, float own, int required)
{
    row_facts facts = row_facts::empty();
    if (values.to_z(own) > -INFINITY) {
        facts.highest = facts.lowest_max = gumbel_key_of_value(own);
        facts.num_maxima = 1;
    }
    uint32_t key = find_reached_key(facts, own, required);
    return key > 0 ? gumbel_value_of_key(key) : -INFINITY;
}

} // namespace

#endif
