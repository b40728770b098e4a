/* SPDX-License-Identifier: Apache-2.0
 *
 * What the screened draw keeps in shared memory beside its ring of stages, for a product of n
 * columns, two for each of n / 2 rows of the batch; and the thresholds and marks of those rows.
 *
 * A threshold is what a score must reach to matter: less than what some token surely has; where
 * rows are cut, what a logit must, less than as many tokens surely have as matter. Of each
 * row and block of 64 tokens a mark tells how wide intervals of logits are there, and the upper end
 * that a token must reach to come to the threshold by the noise of its block.
 */
#ifndef GUMBEL_CUDA_SCREEN_SHARED_CUH
#define GUMBEL_CUDA_SCREEN_SHARED_CUH

#include "cuda/fused/hopper/noise_sm90.cuh"
#include "cuda/fused/screen/screen_case.cuh"
#include "cuda/fused/tile/row_bound.cuh"

namespace
{

constexpr int kTileBlocks = CUDA_SCREEN_TILE / GUMBEL_BLOCK;
constexpr int kScreenTeams = 2; /* warpgroups that multiply and draw, in turns */
constexpr int kScreenTries = 8; /* how often a tile that offers too much is drawn from again */

/* What the tokens of a block are passed over by. */
struct screen_mark {
    float least; /* of upper ends, finite; +inf where there is nothing to draw */
    float width;
};

/* A token that passed its mark. */
struct screen_offer {
    float lower, upper; /* ends of its logit's interval */
    uint32_t place;     /* its row, 8 bits; then its token in the tile */
};

/* When a product ended, and how long it took, by the clock of the multiprocessor. */
struct screen_time {
    uint32_t ended, took;
};

struct screen_kept {
    float upper; /* end of its score's interval */
    uint32_t token, row;
};

template <int n> struct screen_side {
    static constexpr int rows = n / 2;

    uint64_t full[CUDA_SCREEN_STAGES_MAX], empty[CUDA_SCREEN_STAGES_MAX];
    uint64_t served[kScreenTeams], drawn[kScreenTeams], multiplied[kScreenTeams];
    screen_mark marks[kTileBlocks][rows];
    float units[rows];
    float thresholds[rows];
    /* What a score of the row is not below, as ordered bits, above the token that has it. */
    unsigned long long best[rows];
    uint32_t leads[2]; /* bits of rows of which this CTA has just told a threshold of its own */
    float2 parts[SM90_SERVE_THREADS / 32];   /* of a product of one row */
    screen_time times[kScreenTeams];         /* of each team's last product */
    uint32_t first_words[kTileBlocks][rows]; /* of the first tile: first_word_of() the block */
    float seeds[kTileBlocks][rows]; /* the lower end of each block's token of most noise there */
    sm90_draw draws[rows];
    gumbel_screen_reach reaches[rows];
    uint32_t offered, kept;
    uint32_t again;    /* 1: the full pass must draw this call */
    uint32_t is_known; /* 1: that is so from the beginning, by a row of the batch */
    uint32_t kept_most;
    screen_offer offers[CUDA_SCREEN_TILE_QUEUE];
    screen_kept list[CUDA_SCREEN_CTA_CANDIDATES];
    /* Of masks; behind what all calls have, which lies as without it. */
    uint32_t allowed[kTileBlocks][rows][2]; /* bits of the tokens that the row's mask leaves */
    const int32_t *masks[rows];             /* NULL: none */
    /* Of the case CUDA_SCREEN_TRUNCATED. */
    int ranks[rows];       /* of the first tokens that matter */
    uint32_t passed[rows]; /* tokens of the tile that are listed; then their first place */
    uint32_t ends;         /* 1: no more floors are wanted */

    /* One thread. */
    __device__ void start_barriers(int stages, int servers)
    {
        for (int i = 0; i < stages; i++) {
            ptx_barrier_init(&full[i], 1);
            ptx_barrier_init(&empty[i], 1);
        }
        for (int i = 0; i < kScreenTeams; i++) {
            ptx_barrier_init(&served[i], servers);
            ptx_barrier_init(&drawn[i], 128);
            ptx_barrier_init(&multiplied[i], 4);
        }
        ptx_fence_barrier_init();
    }

    /* All threads. */
    template <class call> __device__ void clear(const call &s)
    {
        if (threadIdx.x == 0) {
            offered = kept = again = is_known = 0;
            kept_most = min(CUDA_SCREEN_CTA_CANDIDATES, 2 * max(1, s.header->list_most));
            if (call::cuts)
                ends = 0;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < rows; i += CUDA_SM90_THREADS) {
            thresholds[i] = -INFINITY;
            best[i] = (unsigned long long)ordered_bits(-INFINITY) << 32;
            units[i] = 0.0f;
            draws[i] = {};
            for (int b = 0; b < kTileBlocks; b++)
                marks[b][i] = {INFINITY, 0.0f};
            if (i >= s.draws || !s.lives(i))
                continue;
            reaches[i] = s.reaches[i];
            units[i] = reaches[i].unit;
            if (isnan(units[i])) {
                is_known = 1;
                continue;
            }
            draws[i] = s.parameters_of(i);
            if (call::masked)
                masks[i] = s.mask_of(i);
            if (call::cuts) {
                ranks[i] = rank_of(s.call, i);
                passed[i] = 0;
                if (ranks[i] == 0)
                    is_known = 1;
                if (blockIdx.x == 0)
                    s.call.row_thresholds[CUDA_THRESHOLD_WORDS * i + CUDA_TRUNCATED_RANK] =
                        ranks[i];
            }
        }
    }

    /* How many first tokens of a row tell it wholly; 0 where so few do not. */
    static __device__ __noinline__ int rank_of(const cuda_params &p, int row)
    {
        const int rank = row_bound_of(p, row).rank;
        return rank <= CUDA_SCREEN_RANK_MAX ? rank : 0;
    }

    /* What some token's score is not below; -inf for none. */
    __device__ __forceinline__ float reached(int i) const
    {
        return ordered_float((uint32_t)(best[i] >> 32));
    }

    __device__ __forceinline__ void reach(int i, float score, uint32_t token)
    {
        if (score > -INFINITY)
            atomicMax(&best[i], (unsigned long long)ordered_bits(score) << 32 | token);
    }

    /* Whether the tile that has been drawn from is drawn from again: by the team behind a barrier,
     * or by those that serve it, before the list is free again. */
    __device__ __forceinline__ bool repeats(int tries) const
    {
        return offered > CUDA_SCREEN_TILE_QUEUE && tries < kScreenTries;
    }

    __device__ __forceinline__ bool draws_row(int i) const
    {
        return i < rows && draws[i].inverse_temperature != 0.0f;
    }
};

static_assert(sizeof(screen_side<128>) <= CUDA_SCREEN_SIDE_BYTES, "as the number of stages has it");

/* The words that CTAs share of a row (ending_sm90.cuh); the first one is its floor. */
__device__ __forceinline__ uint64_t *floor_of_row(const cuda_screen_params &s, int i)
{
    return &s.call.row_thresholds[CUDA_THRESHOLD_WORDS * i];
}

/* Raise row i's threshold to its floor; whether that raises it. */
template <int n>
__device__ __forceinline__ bool take_floor(const cuda_screen_params &s, screen_side<n> &side, int i,
                                           uint64_t floor)
{
    const float threshold = unpack_threshold(floor);
    const bool raises = floor >> THRESHOLD_BITS == s.call.tag && threshold > side.thresholds[i];
    if (raises)
        side.thresholds[i] = threshold;
    return raises;
}

/* Raise row i's floor to its threshold. The first kernel of the call has cleared the word, so that
 * an atomic which nothing waits for is enough. */
template <int n>
__device__ __forceinline__ void raise_floor(const cuda_screen_params &s, const screen_side<n> &side,
                                            int i)
{
    const float threshold = side.thresholds[i];
    if (threshold > -INFINITY)
        atomicMax((unsigned long long *)floor_of_row(s, i),
                  (unsigned long long)s.call.tag << THRESHOLD_BITS | pack_threshold(threshold));
}

/* Tell the other CTAs, which at last sight knew of `floor`, if the threshold is news; whether none
 * of them has told of as much. */
template <int n>
__device__ __forceinline__ bool give_floor(const cuda_screen_params &s, screen_side<n> &side, int i,
                                           uint64_t floor)
{
    const float threshold = side.thresholds[i];
    const bool empty = floor >> THRESHOLD_BITS != s.call.tag;
    if (empty || pack_threshold(threshold) > floor % (1 << THRESHOLD_BITS))
        raise_floor(s, side, i);
    return threshold > (empty ? -INFINITY : unpack_threshold(floor));
}

/* Ask for the bits of the tokens of a tile's blocks that row i may draw, where the call has masks;
 * they are there behind wait_allowed(). */
template <int n, class call>
__device__ __forceinline__ void ask_allowed(const call &s, screen_side<n> &side, int i,
                                            uint32_t first)
{
    if (!call::masked)
        return;
    const int32_t *mask = side.masks[i];
    const uint32_t end = (uint32_t)((s.call.problem.end_token + 31) / 32);
#pragma unroll
    for (int k = 0; k < 2 * kTileBlocks; k++) {
        const uint32_t word = first / 32 + k;
        uint32_t *to = &side.allowed[k / 2][i][k % 2];
        if (mask && word < end)
            ptx_copy_async<4>(to, mask + word);
        else
            *to = mask ? 0u : ~0u;
    }
    ptx_copy_async_commit();
}

template <class call> __device__ __forceinline__ void wait_allowed(const call &)
{
    if (call::masked)
        ptx_copy_async_wait<0>();
}

/* Mark the blocks of a tile, of such reaches of noise and bounds, for row i, which draws. */
template <int n, class call>
__device__ __forceinline__ void set_marks(const call &s, screen_side<n> &side, int i,
                                          const float (&reaches)[kTileBlocks],
                                          const gumbel_screen_block (&blocks)[kTileBlocks])
{
    const float unit = draw_bound_unit(s.call.problem.scale * side.draws[i].inverse_temperature);
#pragma unroll
    for (int b = 0; b < kTileBlocks; b++) {
        const float least =
            call::cuts ? side.thresholds[i] : draw_bound(side.thresholds[i], reaches[b], unit);
        const bool any = !call::masked || (side.allowed[b][i][0] | side.allowed[b][i][1]) != 0;
        side.marks[b][i] = {any ? fminf(fmaxf(least, -FLT_MAX), FLT_MAX) : INFINITY,
                            gumbel_screen_width(&side.reaches[i], &blocks[b])};
    }
}

/* The bounds of a tile's blocks. */
__device__ __forceinline__ void load_blocks(const cuda_screen_params &s, int tile,
                                            gumbel_screen_block (&blocks)[kTileBlocks])
{
#pragma unroll
    for (int b = 0; b < kTileBlocks; b++) {
        const float2 own = __ldg((const float2 *)&s.bounds[kTileBlocks * tile + b]);
        blocks[b] = {own.x, own.y};
    }
}

/* The words of a tile's blocks, of row i. */
template <int n>
__device__ __forceinline__ void words_of_tile(const cuda_screen_params &s,
                                              const screen_side<n> &side, int i, uint32_t first,
                                              draw_block (&words)[kTileBlocks])
{
    draw_block all[CUDA_SM90_BLOCKS];
    words_of_blocks(side.draws[i], s.call.problem.sampling.domain, first, all);
#pragma unroll
    for (int b = 0; b < kTileBlocks; b++)
        words[b] = all[b];
}

} // namespace

#endif
