/* SPDX-License-Identifier: Apache-2.0
 *
 * The allowed tokens of a group of rows, in tiles of up to 64 tokens for one product. Blocks of 64
 * tokens are assigned to the CTAs of a group in turn, so that one CTA has all tokens of a block,
 * and sums the mass of the block. A tile holds all allowed tokens of its blocks, and as many blocks
 * as fit. Blocks without allowed tokens are skipped.
 *
 * A CTA examines a window of 128 blocks at a time. If tokens come from lists, and the CTA has at
 * most 128 of their ids, the window has only the blocks of these ids; otherwise windows cover all
 * blocks of the CTA, and each window reads all lists, or its words of the masks.
 */
#ifndef GUMBEL_CUDA_TOKEN_TILES_CUH
#define GUMBEL_CUDA_TOKEN_TILES_CUH

#include "core/row.h"
#include "cuda/common/ptx.cuh"
#include "cuda/fused/allowed/allowed_params.h"
#include "cuda/policy/cuda_policy.h"
#include "cuda/policy/screen_policy.h"

namespace
{

constexpr int kCtaThreads = CUDA_ALLOWED_THREADS, kRows = CUDA_SCREEN_GROUP;
constexpr int kProductThreads = 128; /* threads of a CTA that multiply */
constexpr int kTile = CUDA_ALLOWED_TILE, kWindow = CUDA_ALLOWED_WINDOW;
static_assert(kTile >= GUMBEL_BLOCK, "a tile holds a block");
static_assert(kWindow <= kCtaThreads && kWindow % 32 == 0, "a thread examines a block");

/* A block of a tile. */
struct tile_block {
    int first;                  /* index of its first token in the tile */
    uint32_t any[2];            /* bits of the tokens that any row allows */
    uint32_t allowed[kRows][2]; /* bits of the tokens that each row allows */
};

struct token_tile {
    int count, block_count;
    tile_block blocks[kTile];
    const uint16_t *weights[kTile];
    int32_t tokens[kTile];
    uint8_t block_of[kTile];
};

/* The list of a row: ids[begin .. begin + count - 1]. */
struct row_list {
    int64_t begin, count;
};

/* Where the tokens of a group's rows come from, and the blocks that the CTA examines. */
struct token_window {
    bool is_drawn[kRows];        /* false for rows beyond the batch, too */
    const int32_t *masks[kRows]; /* NULL if tokens come from lists */
    row_list lists[kRows];       /* if tokens come from lists; count 0: every token is allowed */
    uint32_t blocks[kWindow];    /* indices; block 0 holds first_token */
    uint32_t bits[kWindow][kRows][2];
    int warp_sums[kWindow / 32];
    int entry_count;           /* listed ids in blocks of this CTA; may exceed kWindow */
    uint32_t entries[kWindow]; /* the first kWindow of these ids, less the first token of block 0 */
    uint8_t entry_rows[kWindow];
};

/* All functions are for all threads of a CTA, unless stated otherwise. */
class token_tiles
{
    const gumbel_problem &q;
    token_window &window;
    token_tile &tile;
    const uint32_t member; /* index of this CTA in its group */
    uint32_t members;      /* CTAs of the group that draw */
    const int64_t origin;  /* first token of block 0 */

  public:
    __device__ __forceinline__ token_tiles(const gumbel_problem &problem, token_window &memory,
                                           token_tile &tokens, uint32_t number, uint32_t count)
        : q(problem), window(memory), tile(tokens), member(number), members(count),
          origin(problem.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK)
    {
    }

    /* Clears the window; reads no global memory. load_row() and a barrier must follow. */
    __device__ __forceinline__ void clear() const
    {
        for (int i = threadIdx.x; i < kWindow * kRows * 2; i += kCtaThreads)
            (&window.bits[0][0][0])[i] = 0;
        if (threadIdx.x == 0)
            window.entry_count = tile.count = tile.block_count = 0;
    }

    /* Loads the address of the mask, or the place of the list, of row i of the group, which is row
     * b of the batch; one thread calls it. */
    __device__ __forceinline__ void load_row(int i, int64_t b, bool reads_lists) const
    {
        window.masks[i] = nullptr;
        window.lists[i] = {0, 0};
        if (b >= q.batch)
            return;
        if (!reads_lists) {
            window.masks[i] = gumbel_problem_mask(&q, b);
            return;
        }
        const int64_t *offsets = q.transforms.allowed.offsets + gumbel_problem_list_of_row(&q, b);
        window.lists[i] = {offsets[0], offsets[1] - offsets[0]};
    }

    /* Chooses how many CTAs of the group draw, by the lengths of lists, and returns this number.
     * All CTAs of the group choose the same number. load_row() and a barrier come before. */
    __device__ __forceinline__ int choose_members(bool reads_lists)
    {
        int64_t ids = 0;
        if (!reads_lists || allows_all())
            return (int)members;
        for (int row = 0; row < kRows; row++)
            ids += count_ids(row);
        if (ids <= CUDA_ALLOWED_ALONE)
            members = 1;
        else if (ids < (int64_t)members * CUDA_ALLOWED_PER_CTA)
            members = (uint32_t)(ids + CUDA_ALLOWED_PER_CTA - 1) / CUDA_ALLOWED_PER_CTA;
        return (int)members;
    }

    /* Calls draw() for each tile of the CTA. Each call begins and ends with a barrier. */
    template <class F> __device__ __forceinline__ void each(bool reads_lists, F draw) const
    {
        const bool is_short = reads_lists && !allows_all() && collect_entries();
        const uint32_t blocks =
            (uint32_t)((q.end_token - origin + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK);
        const uint32_t own = is_short ? kWindow : (blocks + members - 1 - member) / members;
#pragma unroll 1
        for (uint32_t base = 0; base < own; base += kWindow) {
            if (is_short)
                fill_by_entries();
            else
                fill_window(base, reads_lists);
            for (int next = 0; next < kWindow;) {
                next = append_blocks(next);
                if (tile.count == 0 || (next == kWindow && base + kWindow < own))
                    continue; /* further blocks may fit */
                draw();
                if (threadIdx.x == 0)
                    tile.count = tile.block_count = 0;
                __syncthreads();
            }
        }
    }

  private:
    /* The length of a row's list; 0 if the row is not drawn, or allows every token. */
    __device__ __forceinline__ int64_t count_ids(int row) const
    {
        return window.is_drawn[row] ? max(window.lists[row].count, (int64_t)0) : 0;
    }

    /* Calls f(row, id - origin) for each listed id in a block of this CTA. */
    template <class F> __device__ __forceinline__ void each_listed(F f) const
    {
        constexpr int ahead = 4; /* loads in flight */
        int64_t total = 0;
        for (int row = 0; row < kRows; row++)
            total += count_ids(row);
#pragma unroll 1
        for (int64_t at = threadIdx.x; at < total; at += ahead * kCtaThreads) {
            int rows[ahead] = {};
            int64_t ids[ahead];
#pragma unroll
            for (int j = 0; j < ahead; j++) {
                int64_t i = at + j * kCtaThreads;
                ids[j] = -1;
                if (i >= total)
                    continue;
                for (; i >= count_ids(rows[j]); rows[j]++)
                    i -= count_ids(rows[j]);
                ids[j] = q.transforms.allowed.ids[window.lists[rows[j]].begin + i];
            }
#pragma unroll
            for (int j = 0; j < ahead; j++) {
                const uint32_t token = (uint32_t)(ids[j] - origin);
                if (ids[j] >= q.first_token && ids[j] < q.end_token &&
                    token / GUMBEL_BLOCK % members == member)
                    f(rows[j], token);
            }
        }
    }

    /* Whether some drawn row has an empty list, which allows every token. */
    __device__ __forceinline__ bool allows_all() const
    {
        bool all = false;
        for (int row = 0; row < kRows; row++)
            all |= window.is_drawn[row] && window.lists[row].count <= 0;
        return all;
    }

    /* Stores the listed ids in blocks of this CTA as entries. Returns whether all of them fit; ends
     * with a barrier. */
    __device__ __forceinline__ bool collect_entries() const
    {
        each_listed([&](int row, uint32_t token) {
            const int place = atomicAdd(&window.entry_count, 1);
            if (place < kWindow) {
                window.entries[place] = token;
                window.entry_rows[place] = (uint8_t)row;
            }
        });
        __syncthreads();
        return window.entry_count <= kWindow;
    }

    /* Sets the bit of each entry. Place i of the window has the block of entry i; entries of one
     * block set their bits at the place of the first of them, and the other places stay empty. The
     * window is clear before; ends with a barrier. */
    __device__ __forceinline__ void fill_by_entries() const
    {
        const int i = threadIdx.x;
        if (i < window.entry_count) {
            const uint32_t token = window.entries[i], block = token / GUMBEL_BLOCK;
            int first = i;
#pragma unroll 8
            for (int j = i - 1; j >= 0; j--) /* without a break: independent loads */
                first = window.entries[j] / GUMBEL_BLOCK == block ? j : first;
            window.blocks[i] = block;
            allow_token(first, window.entry_rows[i], token);
        }
        __syncthreads();
    }

    __device__ __forceinline__ void allow_token(int place, int row, uint32_t token) const
    {
        atomicOr(&window.bits[place][row][token / 32 % 2], 1u << token % 32);
    }

    /* Loads the bits of kWindow blocks of this CTA, from its block number `base` on; ends with a
     * barrier. */
    __device__ __forceinline__ void fill_window(uint32_t base, bool reads_lists) const
    {
        const int i = threadIdx.x;
        if (i < kWindow) {
            window.blocks[i] = (base + i) * members + member;
#pragma unroll
            for (int word = 0; word < kRows * 2; word++) {
                const int row = word / 2;
                const bool all = reads_lists && window.lists[row].count <= 0;
                uint32_t bits = window.is_drawn[row] && all ? ~0u : 0;
                if (window.is_drawn[row] && window.masks[row])
                    bits = load_word(row, window.blocks[i], word % 2);
                window.bits[i][row][word % 2] = bits;
            }
        }
        __syncthreads();
        if (!reads_lists)
            return;
        each_listed([&](int row, uint32_t token) {
            const uint32_t place = token / GUMBEL_BLOCK / members - base; /* wraps below `base` */
            if (place < kWindow)
                allow_token((int)place, row, token);
        });
        __syncthreads();
    }

    /* A word of a row's mask; 0 past the last token. */
    __device__ __forceinline__ uint32_t load_word(int row, uint32_t block, int word) const
    {
        const int64_t first = origin + (int64_t)GUMBEL_BLOCK * block + 32 * word;
        return first < q.end_token ? (uint32_t)__ldcg(&window.masks[row][first / 32]) : 0;
    }

    /* The bits of a word's tokens in first_token .. end_token - 1. */
    __device__ __forceinline__ uint32_t counted_tokens(uint32_t block, int word) const
    {
        const int64_t first = origin + (int64_t)GUMBEL_BLOCK * block + 32 * word;
        const int64_t skipped = q.first_token - first, counted = q.end_token - first;
        uint32_t bits = counted >= 32 ? ~0u : counted > 0 ? (1u << counted) - 1 : 0;
        return skipped <= 0 ? bits : skipped < 32 ? bits >> skipped << skipped : 0;
    }

    /* Appends blocks of the window, from number `next` on, to the tile, until one does not fit.
     * Returns the number of this block, or kWindow if all fit. Begins after a barrier and ends with
     * one. */
    __device__ __forceinline__ int append_blocks(int next) const
    {
        const int i = threadIdx.x, warp = i / 32, lane = i % 32;
        uint32_t any[2] = {0, 0};
        if (i >= next && i < kWindow) {
#pragma unroll
            for (int row = 0; row < kRows; row++) {
                any[0] |= window.bits[i][row][0];
                any[1] |= window.bits[i][row][1];
            }
            if (any[0] | any[1]) {
                any[0] &= counted_tokens(window.blocks[i], 0);
                any[1] &= counted_tokens(window.blocks[i], 1);
            }
        }
        __syncwarp();
        constexpr int one_block = 1 << 16; /* a sum counts tokens below, and blocks above */
        const int own = __popc(any[0]) + __popc(any[1]);
        int sum = own ? own + one_block : 0; /* of this block and those before it */
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int before = __shfl_up_sync(~0u, sum, step, 32);
            sum += lane >= step ? before : 0;
        }
        if (lane == 31 && i < kWindow)
            window.warp_sums[warp] = sum;
        __syncthreads();
        for (int w = 0; w < kWindow / 32; w++)
            sum += w < warp ? window.warp_sums[w] : 0;
        sum += tile.block_count * one_block + tile.count;
        const bool fits = i < kWindow && sum % one_block <= kTile;
        const int taken = __syncthreads_count(fits);
        if (fits && own)
            add_block(i, sum / one_block - 1, sum % one_block - own, any);
        if (i + 1 == taken) {
            tile.count = sum % one_block;
            tile.block_count = sum / one_block;
        }
        __syncthreads();
        return taken;
    }

    /* Copies block i of the window to block `at` of the tile; one thread calls it. */
    __device__ __forceinline__ void add_block(int i, int at, int first,
                                              const uint32_t (&any)[2]) const
    {
        tile_block &block = tile.blocks[at];
        block.first = first;
#pragma unroll
        for (int word = 0; word < 2; word++) {
            block.any[word] = any[word];
#pragma unroll
            for (int row = 0; row < kRows; row++)
                block.allowed[row][word] = window.bits[i][row][word] & any[word];
            for (uint32_t bits = any[word]; bits; bits &= bits - 1) {
                const int64_t token =
                    origin + (int64_t)GUMBEL_BLOCK * window.blocks[i] + 32 * word + __ffs(bits) - 1;
                tile.tokens[first] = (int32_t)token;
                tile.weights[first] =
                    (const uint16_t *)q.weight.data + (token - q.first_token) * q.weight.stride;
                tile.block_of[first++] = (uint8_t)at;
            }
        }
    }
};

} // namespace

#endif
