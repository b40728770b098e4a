/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared memory of a draw with a screen, in addition to its ring of stages, and the thresholds and
 * filters of rows. A product of n columns serves n / 2 rows of the batch, two columns each.
 *
 * A threshold is a lower bound on the row's winning score; for truncated rows, on the logits, after
 * penalties, of the tokens that can affect the outputs. The filter of a row and a block of 64
 * tokens holds the upper bound that a logit must reach so that the score can reach the threshold
 * with the largest noise of the block. Bounds of a logit are those of gumbel_screen_bound_logit().
 *
 * Coarse bounds are too wide for thresholds: a lower bound is twice the width below the upper one.
 * Their middle is a good estimate, however. Thresholds then come from exact products of the tokens
 * with the largest estimated scores.
 */
#ifndef GUMBEL_CUDA_SCREEN_SHARED_CUH
#define GUMBEL_CUDA_SCREEN_SHARED_CUH

#include "cuda/fused/hopper/noise_sm90.cuh"
#include "cuda/fused/screen/screen_case.cuh"
#include "cuda/fused/tile/row_bound.cuh"

namespace
{

constexpr int kTileBlocks = CUDA_SCREEN_TILE / GUMBEL_BLOCK;
constexpr int kScreenConsumers = 2; /* one warpgroup each, which multiply and draw in turns */
constexpr int kScreenTries = 8; /* how often a tile with too many candidates is filtered again */

/* The filter of a block's tokens. */
struct screen_filter {
    float min_upper; /* least upper bound that passes, finite; +inf if there is nothing to draw */
    float upper;     /* the width of an upper bound: W - shift */
};

/* W of a row and a block. */
template <class call>
__device__ __forceinline__ float error_width(const call &s,
                                             const gumbel_screen_hidden_error &hidden_error,
                                             const gumbel_screen_block &block)
{
    return call::coarse ? gumbel_screen_coarse_width(&hidden_error, &block, s.low_nibbles_norm)
                        : gumbel_screen_error_width(&hidden_error, &block);
}

/* The width of a lower bound: -W - shift. */
template <class call>
__device__ __forceinline__ float lower_width(const call &s,
                                             const gumbel_screen_hidden_error &hidden_error,
                                             const gumbel_screen_block &block)
{
    return -error_width(s, hidden_error, block) - hidden_error.shift;
}

/* A token that passed its filter. */
struct screen_candidate {
    float lower, upper; /* bounds of its logit */
    uint32_t place;     /* its row, 8 bits; then its index in the tile */
};

/* Packs a row_bound: the rank in bits 0 to 31, the distance of min_p above, as float32; -1: no
 * min_p. */
__device__ __forceinline__ uint64_t pack_bound_word(const row_bound &bound)
{
    const float distance = bound.top_rank > 0 ? bound.distance : -1.0f;
    return (uint64_t)__float_as_uint(distance) << 32 | (uint32_t)bound.rank;
}
__device__ __forceinline__ row_bound read_bound_word(uint64_t word)
{
    const float distance = __uint_as_float((uint32_t)(word >> 32));
    return {(int)(uint32_t)word, distance >= 0.0f, distance};
}

/* When a product ended, and how long it took, by the clock of the multiprocessor. */
struct screen_time {
    uint32_t ended, took;
};

struct screen_survivor {
    float upper; /* upper bound of its score */
    uint32_t token, row;
    float middle; /* by coarse bounds: of the bounds of its logit */
};

template <int n> struct screen_shared {
    static constexpr int rows = n / 2;

    uint64_t full[CUDA_SCREEN_STAGES_MAX], empty[CUDA_SCREEN_STAGES_MAX];
    uint64_t served[kScreenConsumers], drawn[kScreenConsumers], multiplied[kScreenConsumers];
    screen_filter filters[kTileBlocks][rows];
    float lower_widths[kTileBlocks][rows]; /* beside the filters: lower_width() */
    float units[rows];
    float thresholds[rows];
    /* The best lower bound of a score of the row, or by coarse bounds the best estimate, as ordered
     * bits, above the token that has it. */
    unsigned long long best[rows];
    unsigned long long estimate; /* shared_estimate() of a row */
    uint32_t leads[2]; /* bits of rows for which this CTA has just published a higher threshold */
    float2 warp_sums[SM90_SERVE_THREADS / 32]; /* of a product of one row */
    screen_time times[kScreenConsumers];       /* of each consumer's last product */
    uint32_t first_words[kTileBlocks][rows];   /* of the first tile: first_word_of() the block */
    /* Lower bounds, in the first tile, of each block's token of most noise. */
    float noisiest_bounds[kTileBlocks][rows];
    sm90_draw draws[rows];
    gumbel_screen_hidden_error hidden_errors[rows];
    uint32_t candidate_count, survivor_count;
    uint32_t needs_full_pass; /* 1: the full pass must draw this call */
    uint32_t skips_screen;    /* 1: known from the start, by a row of the batch */
    uint32_t survivor_capacity;
    uint32_t estimates; /* 1: bounds have no width, until thresholds follow from the estimates */
    screen_candidate candidates[CUDA_SCREEN_TILE_QUEUE];
    screen_survivor survivors[CUDA_SCREEN_CTA_CANDIDATES];
    /* With masks only; last, so that the other fields have equal offsets in all cases. */
    /* Bits of the tokens that the row's mask allows (clear_seen_tokens()). */
    uint32_t allowed[kTileBlocks][rows][2];
    const int32_t *masks[rows]; /* NULL: none */
    /* Truncated rows only: */
    screen_penalties penalties[rows];
    row_bound wanted[rows]; /* which leading tokens can affect the outputs */
    uint32_t listed[rows];  /* tokens of the tile that are listed; then the index of the first */
    uint32_t stop_raising;  /* 1: screen_raise_thresholds() returns */

    /* Initialises the barriers; by one thread. The arrivals: of a ring (screen_multiply.cuh). */
    __device__ void start_barriers(int stages, int servers, int copy_arrivals, int free_arrivals)
    {
        for (int i = 0; i < stages; i++) {
            ptx_barrier_init(&full[i], copy_arrivals);
            ptx_barrier_init(&empty[i], free_arrivals);
        }
        for (int i = 0; i < kScreenConsumers; i++) {
            ptx_barrier_init(&served[i], servers);
            ptx_barrier_init(&drawn[i], 128);
            ptx_barrier_init(&multiplied[i], 4);
        }
        ptx_fence_barrier_init();
    }

    /* Clears all state; for all threads. */
    template <class call> __device__ void clear(const call &s)
    {
        if (threadIdx.x == 0) {
            candidate_count = survivor_count = needs_full_pass = skips_screen = 0;
            survivor_capacity =
                call::coarse ? CUDA_SCREEN_CTA_CANDIDATES
                             : min(CUDA_SCREEN_CTA_CANDIDATES, 2 * max(1, s.header->list_max));
            estimates = call::coarse;
            if (call::truncates)
                stop_raising = 0;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < rows; i += CUDA_SM90_THREADS) {
            thresholds[i] = -INFINITY;
            clear_best(i);
            units[i] = 0.0f;
            draws[i] = {};
            for (int b = 0; b < kTileBlocks; b++) {
                filters[b][i] = {INFINITY, 0.0f};
                lower_widths[b][i] = 0.0f;
            }
            if (i >= s.draws || !s.is_live(i))
                continue;
            hidden_errors[i] = call::coarse ? s.coarse_errors[i] : s.hidden_errors[i];
            units[i] = hidden_errors[i].unit;
            if (isnan(units[i])) {
                skips_screen = 1;
                continue;
            }
            draws[i] = s.parameters_of(i);
            if (call::masked)
                masks[i] = s.mask_of(i);
            if (call::truncates) {
                penalties[i] = s.penalties_of(i);
                wanted[i] = bound_of(s.call, i);
                listed[i] = 0;
                if (wanted[i].rank == 0 && wanted[i].top_rank == 0)
                    skips_screen = 1;
                if (blockIdx.x == 0)
                    s.call.row_thresholds[CUDA_THRESHOLD_WORDS * i + CUDA_TRUNCATED_BOUND] =
                        pack_bound_word(wanted[i]);
            }
        }
    }

    /* The leading tokens that determine a row's outputs; both ranks are 0 if they are too many. */
    static __device__ __noinline__ row_bound bound_of(const cuda_params &p, int row)
    {
        const row_bound bound = row_bound_of(p, row);
        return bound.rank <= CUDA_SCREEN_RANK_MAX ? bound : row_bound{0, 0, 0.0f};
    }

    /* The best lower bound of row i; -inf: none. */
    __device__ __forceinline__ float best_bound(int i) const
    {
        return ordered_float((uint32_t)(best[i] >> 32));
    }

    __device__ __forceinline__ void clear_best(int i)
    {
        best[i] = (unsigned long long)ordered_bits(-INFINITY) << 32;
    }

    __device__ __forceinline__ void raise_best(int i, float score, uint32_t token)
    {
        if (score > -INFINITY)
            atomicMax(&best[i], (unsigned long long)ordered_bits(score) << 32 | token);
    }

    /* Whether the tile is filtered again; by the consumer after a barrier, or by the service warps
     * before the list is free again. */
    template <class call> __device__ __forceinline__ bool must_repeat(const call &, int tries) const
    {
        return (candidate_count > CUDA_SCREEN_TILE_QUEUE && tries < kScreenTries) ||
               (call::coarse && estimates);
    }

    __device__ __forceinline__ bool draws_row(int i) const
    {
        return i < rows && draws[i].inverse_temperature != 0.0f;
    }
};

static_assert(sizeof(screen_shared<128>) <= CUDA_SCREEN_SIDE_BYTES,
              "cuda_screen_stages() counts this size");

/* Words that CTAs share for row i (finish_sm90.cuh); the first one is its shared threshold. */
__device__ __forceinline__ uint64_t *shared_threshold(const cuda_screen_params &s, int i)
{
    return &s.call.row_thresholds[CUDA_THRESHOLD_WORDS * i];
}

/* The largest published estimate of a score of row i, as screen_shared::best, whose token has no
 * product yet; 0: none. */
__device__ __forceinline__ unsigned long long *shared_estimate(const cuda_screen_params &s, int i)
{
    return (unsigned long long *)shared_threshold(s, i) + CUDA_SCREEN_ESTIMATE;
}

/* Raises row i's threshold to the shared one; returns whether it was higher. */
template <int n>
__device__ __forceinline__ bool raise_to_shared(const cuda_screen_params &s,
                                                screen_shared<n> &shared, int i, uint64_t word)
{
    const float threshold = unpack_threshold(word);
    const bool raises = word >> THRESHOLD_BITS == s.call.tag && threshold > shared.thresholds[i];
    if (raises)
        shared.thresholds[i] = threshold;
    return raises;
}

/* Raises row i's shared threshold to the CTA's. The first kernel of the call has cleared the word,
 * so an atomic without a result is enough. */
template <int n>
__device__ __forceinline__ void raise_shared(const cuda_screen_params &s,
                                             const screen_shared<n> &shared, int i)
{
    const float threshold = shared.thresholds[i];
    if (threshold > -INFINITY)
        atomicMax((unsigned long long *)shared_threshold(s, i),
                  (unsigned long long)s.call.tag << THRESHOLD_BITS | pack_threshold(threshold));
}

/* Publishes row i's threshold if it exceeds the shared one, last read as `word`. Returns whether
 * this CTA leads: no other CTA had published as much. */
template <int n>
__device__ __forceinline__ bool publish_threshold(const cuda_screen_params &s,
                                                  screen_shared<n> &shared, int i, uint64_t word)
{
    const float threshold = shared.thresholds[i];
    const bool empty = word >> THRESHOLD_BITS != s.call.tag;
    if (empty || pack_threshold(threshold) > word % (1 << THRESHOLD_BITS))
        raise_shared(s, shared, i);
    return threshold > (empty ? -INFINITY : unpack_threshold(word));
}

/* Starts to copy the mask bits of row i for a tile's tokens, if the call has masks; wait_allowed()
 * completes the copies. */
template <int n, class call>
__device__ __forceinline__ void copy_allowed(const call &s, screen_shared<n> &shared, int i,
                                             uint32_t first)
{
    if (!call::masked)
        return;
    const int32_t *mask = shared.masks[i];
    const uint32_t end = (uint32_t)((s.call.problem.end_token + 31) / 32);
#pragma unroll
    for (int k = 0; k < 2 * kTileBlocks; k++) {
        const uint32_t word = first / 32 + k;
        uint32_t *to = &shared.allowed[k / 2][i][k % 2];
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

/* Clears the bits of the tokens that row i's history has seen, which penalties may lower, in the
 * bits of allowed tokens: for the maximum of a CTA's first tile alone. */
template <int n, class call>
__device__ __forceinline__ void clear_seen_tokens(const call &s, screen_shared<n> &shared, int i,
                                                  uint32_t first)
{
    const screen_penalties &row = shared.penalties[i];
    if (!call::truncates || row.slot < 0)
        return;
    const gumbel_history &h = s.call.problem.history;
    const uint32_t *prompt = words_of_slot(h, h.prompt, row.slot);
    const uint32_t *output = words_of_slot(h, h.output, row.slot);
    const uint32_t end = (uint32_t)gumbel_mask_words_of(h.vocab_size);
#pragma unroll
    for (int k = 0; k < 2 * kTileBlocks; k++)
        if (first / 32 + k < end)
            shared.allowed[k / 2][i][k % 2] &=
                ~(__ldg(&prompt[first / 32 + k]) | __ldg(&output[first / 32 + k]));
}

/* Sets the filters of row i, which draws, for the blocks of a tile, from their noise bounds and
 * error bounds. */
template <int n, class call>
__device__ __forceinline__ void set_filters(const call &s, screen_shared<n> &shared, int i,
                                            const float (&noise_bounds)[kTileBlocks],
                                            const gumbel_screen_block (&blocks)[kTileBlocks])
{
    const float unit = draw_bound_unit(s.call.problem.scale * shared.draws[i].inverse_temperature);
#pragma unroll
    for (int b = 0; b < kTileBlocks; b++) {
        const float min_upper = call::truncates
                                    ? shared.thresholds[i]
                                    : draw_bound(shared.thresholds[i], noise_bounds[b], unit);
        const bool any = !call::masked || (shared.allowed[b][i][0] | shared.allowed[b][i][1]) != 0;
        const gumbel_screen_hidden_error &hidden_error = shared.hidden_errors[i];
        const float width =
            call::coarse && shared.estimates ? 0.0f : error_width(s, hidden_error, blocks[b]);
        shared.filters[b][i] = {any ? fminf(fmaxf(min_upper, -FLT_MAX), FLT_MAX) : INFINITY,
                                width - hidden_error.shift};
        shared.lower_widths[b][i] = -width - hidden_error.shift;
    }
}

/* Loads the error bounds of a tile's blocks. */
__device__ __forceinline__ void load_blocks(const cuda_screen_params &s, int tile,
                                            gumbel_screen_block (&blocks)[kTileBlocks])
{
#pragma unroll
    for (int b = 0; b < kTileBlocks; b++) {
        const float2 own = __ldg((const float2 *)&s.bounds[kTileBlocks * tile + b]);
        blocks[b] = {own.x, own.y};
    }
}

/* Computes the words of a tile's blocks for row i. */
template <int n>
__device__ __forceinline__ void words_of_tile(const cuda_screen_params &s,
                                              const screen_shared<n> &shared, int i, uint32_t first,
                                              draw_block (&words)[kTileBlocks])
{
    draw_block all[CUDA_SM90_BLOCKS];
    words_of_blocks(shared.draws[i], s.call.problem.sampling.domain, first, all);
#pragma unroll
    for (int b = 0; b < kTileBlocks; b++)
        words[b] = all[b];
}

} // namespace

#endif
