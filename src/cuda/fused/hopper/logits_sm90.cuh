/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of a team's sums before a draw (layout: wgmma.cuh), or instead of one: logits
 * with their bias and their soft-cap, none for tokens that do not count; stored, all or those that
 * bounds leave (bound_sm90.cuh), and their peaks.
 */
#ifndef GUMBEL_CUDA_LOGITS_SM90_CUH
#define GUMBEL_CUDA_LOGITS_SM90_CUH

#include "maths/edits.h"
#include "cuda/common/draw.cuh"
#include "cuda/common/row_thresholds.cuh"
#include "cuda/fused/hopper/lanes_sm90.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"
#include "cuda/common/widen.cuh"

namespace
{

/* Ask for the first bounds of all columns until they are there, for so many cycles at most; by a
 * warp. They follow from peaks that all CTAs have just stored. Until all have started, `shared` may
 * be what an earlier replay has left. */
template <int words>
__device__ __noinline__ void ask_for_bounds(const uint64_t *shared, uint64_t tag, int columns,
                                            float *thresholds, uint32_t *flags, uint32_t patience)
{
    constexpr int nap = 250; /* nanoseconds: a trip to the second-level cache takes thousands */
    const int lane = threadIdx.x % 32;
    const uint32_t began = clock();
    bool waits = true;
    while (waits && __any_sync(~0u, (uint32_t)clock() - began < patience)) {
        uint64_t floors[words];
        bool lacks = false;
        __nanosleep(nap);
        if (!__any_sync(~0u, lane == 0 && (atomicOr(flags, 0) & SM90_STARTED)))
            continue;
#pragma unroll
        for (int w = 0; w < words; w++) {
            const int column = 32 * w + lane;
            floors[w] =
                column < columns ? load_threshold(&shared[CUDA_THRESHOLD_WORDS * column]) : 0;
        }
#pragma unroll
        for (int w = 0; w < words; w++) {
            const int column = 32 * w + lane;
            const bool own = floors[w] > 0 && floors[w] >> THRESHOLD_BITS == tag;
            if (own)
                thresholds[column] = unpack_threshold(floors[w]);
            lacks |= !own && column < columns;
        }
        waits = __any_sync(~0u, lacks);
    }
}

template <int n, class call> class tile_logits
{
    using team = sm90_team<n>;
    using sums = sm90_sums<n>;
    static constexpr int groups = sm90_groups<n>; /* of 8 columns, whose peaks are joined at once */
    static constexpr int words = (n + 31) / 32;
    using kept_bits = uint32_t[team::halves][words]; /* of columns, for each strip of the warp */

    const call &p;
    const shared_sm90<n> &shared;
    int columns, lane, thread; /* in the team */
    uint32_t first;            /* token of the tile */
    const team own_team;

  public:
    /* For one tile, from token `first_token` on; `index` is the thread's. */
    __device__ __forceinline__ tile_logits(const call &params, const shared_sm90<n> &memory,
                                           uint32_t first_token, int index)
        : p(params), shared(memory), columns((int)params.problem.batch), lane(index % 32),
          thread(index % team::threads), first(first_token), own_team(index)
    {
    }

    /* Store the logits of the team's tile, its turn-th, and the peaks of its columns where they are
     * asked for; by these, those strips alone that reach their columns' bounds, for which it waits
     * so many cycles at most; not at all where that is negative, as it is then for all of the team.
     * What lies in `sum` is lost. */
    __device__ __forceinline__ void store(sums &sum, int turn, int patience) const
    {
        kept_bits kept;
        keep_all(kept);
        add_bias(sum);
#pragma unroll
        for (int h = 0; h < team::halves; h++)
            drop_rest(sum, h);
        if (bounds() && (p.problem.request & GUMBEL_REQUEST_MASK))
            drop_masked(sum);
        if constexpr (CUDA_SM90_HAS_BOUNDS(n)) {
            if (p.block_maxima)
                store_peaks(sum, turn);
            if (bounds()) {
                if (patience >= 0) {
                    if (thread < 32)
                        ask_for_bounds<words>(p.row_thresholds, p.tag, columns, shared.thresholds,
                                              shared.flags, (uint32_t)patience);
                    own_team.sync();
                }
                keep_strips(turn, kept);
            }
            store_kept(sum, kept);
        } else {
            store_kept(sum, kept);
            if (p.block_maxima)
                store_peaks(sum, turn);
        }
    }

    /* What is rare: bias, soft-cap, a negative scale, tokens that do not count. In place. */
    __device__ __forceinline__ void prepare(sums &sum) const
    {
        const gumbel_problem &q = p.problem;
        add_bias(sum);
#pragma unroll
        for (int h = 0; h < team::halves; h++) {
            if (p.prepares())
#pragma unroll
                for (int k = 0; k < n / 2; k++)
                    sum[h][k] = q.soft_cap != 0.0f ? draw_soft_cap_logit(p, sum[h][k])
                                                   : sum[h][k] * q.scale;
            drop_rest(sum, h);
        }
    }

    /* Store all logits of the team's tile, which are prepared. */
    __device__ __forceinline__ void store_all(const sums &sum) const
    {
        kept_bits kept;
        keep_all(kept);
        store_kept(sum, kept);
    }

  private:
    static __device__ __forceinline__ void keep_all(kept_bits &kept)
    {
#pragma unroll
        for (int i = 0; i < team::halves * words; i++)
            kept[i / words][i % words] = ~0u;
    }

    __device__ __forceinline__ void store_kept(const sums &sum, const kept_bits &kept) const
    {
#pragma unroll
        for (int h = 0; h < team::halves; h++) {
            int64_t at = token_of_half(h) - p.problem.first_token;
            int64_t left = p.problem.end_token - p.problem.first_token - at;
#pragma unroll
            for (int k = 0; k < n / 4; k++) {
                int column = sm90_column(lane, k), from = sm90_sum(k);
                uint32_t own = kept[h][k / 8] >> sm90_column(0, k % 8) >> 2 * (lane & 3);
                bool stays = column < columns && (own & 1);
                float *to = &p.logits_out[column * p.logits_out_stride + at];
                if (stays && left > 1)
                    *(float2 *)to = {sum[h][from], sum[h][from + 2]};
                else if (stays && left == 1)
                    *to = sum[h][from];
            }
        }
    }

    /* This warp's of the tile. */
    __device__ __forceinline__ int strip_of(int half) const
    {
        static_assert(CUDA_REQUEST_BLOCK == CUDA_SM90_TILE && CUDA_REQUEST_SUBTILE == 64 / 4,
                      "a warp has a strip of each half");
        return thread / 32 + half * (64 / CUDA_REQUEST_SUBTILE);
    }

    /* The first of the thread's two. */
    __device__ __forceinline__ int64_t token_of_half(int half) const
    {
        return first + sm90_place(thread) + 64 * half;
    }

    __device__ __forceinline__ void add_bias(sums &sum) const
    {
        const gumbel_problem &q = p.problem;
#pragma unroll
        for (int f = 0; f < 2 * team::halves && p.has_bias(); f++) {
            int64_t i = token_of_half(f / 2) + f % 2 - q.first_token;
            float add = i < q.vocab ? widen_element(q.bias.data, q.bias.dtype, i) : 0.0f;
#pragma unroll
            for (int k = 0; k < n / 2; k++)
                sum[f / 2][k] += (k >> 1 & 1) == f % 2 ? add : -0.0f;
        }
    }

    /* Tokens of a half that do not count can no longer win. In place. */
    __device__ __forceinline__ void drop_rest(sums &sum, int half) const
    {
        int64_t left = p.problem.end_token - token_of_half(half);
        if (left < CUDA_SM90_TILE)
#pragma unroll
            for (int k = 0; k < n / 2; k++)
                sum[half][k] = (k >> 1 & 1) < left ? sum[half][k] : -INFINITY;
    }

    /* Masked tokens can no longer matter. In place. */
    __device__ __forceinline__ void drop_masked(sums &sum) const
    {
        const uint32_t *masks = (const uint32_t *)shared.masks_of_team(own_team.index);
        const uint32_t place = sm90_place(thread);
#pragma unroll
        for (int h = 0; h < team::halves; h++)
#pragma unroll
            for (int k = 0; k < n / 4; k++) {
                int at = 4 * sm90_column(lane, k) + place / 32 + 2 * h, from = sm90_sum(k);
                uint32_t allowed = masks[at] >> place % 32;
                sum[h][from] = allowed & 1 ? sum[h][from] : -INFINITY;
                sum[h][from + 2] = allowed & 2 ? sum[h][from + 2] : -INFINITY;
            }
    }

    /* Where the peaks of the turn-th tile lie: beside those of the tile before, unless those of
     * tokens that no history has seen lie there. */
    __device__ __forceinline__ int copy_of(int turn) const
    {
        return bounds() && p.unseen_block_maxima ? 0 : turn;
    }

    /* The largest logit of each column: of a strip, 7 exchanges for 32 columns, then of the tile;
     * and the same of tokens that the history has not seen. */
    __device__ __forceinline__ void store_peaks(const sums &sum, int turn) const
    {
        const int64_t tile = tile_index();
        find_peaks(copy_of(turn), [&](int h, int at, int) { return sum[h][at]; });
        for (int column = thread; column < columns; column += team::threads)
            p.block_maxima[column * p.block_maxima_stride + tile] =
                peak_of_tile(column, copy_of(turn));
        if (!bounds() || !p.unseen_block_maxima)
            return;
        const uint32_t *seen = (const uint32_t *)shared.seen_of_team(own_team.index);
        const uint32_t place = sm90_place(thread);
        find_peaks(1, [&](int h, int at, int column) {
            uint32_t bits = seen[4 * column + place / 32 + 2 * h] >> place % 32;
            return bits >> (at >> 1 & 1) & 1 ? -INFINITY : sum[h][at];
        });
        for (int column = thread; column < columns; column += team::threads)
            p.unseen_block_maxima[column * p.block_maxima_stride + tile] = peak_of_tile(column, 1);
    }

    /* Which strips of the turn-th tile are stored, of which columns. Each warp finds out for itself
     * what it has to store, so that no barrier is needed. */
    __device__ __forceinline__ void keep_strips(int turn, kept_bits &kept) const
    {
        constexpr int warps = team::threads / 32;
#pragma unroll
        for (int w = 0; w < words; w++) {
            const int column = 32 * w + lane;
            uint32_t strips = column < columns ? strips_kept(column, copy_of(turn)) : 0;
#pragma unroll
            for (int h = 0; h < team::halves; h++)
                kept[h][w] = __ballot_sync(~0u, strips >> strip_of(h) & 1);
            if (column < columns && thread / 32 == w % warps)
                p.stored_subtiles[tile_index() * 32 * gumbel_words_of(columns) + column] =
                    (uint8_t)strips;
        }
    }

    /* A bit for each strip of a column's tile that is stored, as it reaches the bound. */
    __device__ __forceinline__ uint32_t strips_kept(int column, int copy) const
    {
        const float *peaks = shared.peaks_of_team(own_team.index, copy) + column;
        const float least = shared.thresholds[column];
        uint32_t strips = 0;
#pragma unroll
        for (int i = 0; i < CUDA_REQUEST_SUBTILES; i++)
            strips |= (uint32_t) !(peaks[i * n] < least) << i;
        return strips;
    }

    __device__ __forceinline__ int64_t tile_index() const
    {
        return (first - p.problem.first_token) / CUDA_SM90_TILE;
    }

    __device__ __forceinline__ bool bounds() const { return p.template by_bounds<n>(); }

    /* The largest value(half, which sum, column) of each strip, for all of the team. */
    template <class F> __device__ __forceinline__ void find_peaks(int turn, F value) const
    {
        float *peaks = shared.peaks_of_team(own_team.index, turn);
#pragma unroll
        for (int j = 0; j < n / 8; j += groups) {
            if (8 * j >= columns)
                break;
#pragma unroll
            for (int h = 0; h < team::halves; h++) {
                float largest[2 * groups];
#pragma unroll
                for (int k = 0; k < 2 * groups; k++) {
                    int at = 4 * j + sm90_sum(k), column = 8 * j + sm90_column(lane, k);
                    largest[k] = ptx_max_nan(value(h, at, column), value(h, at + 2, column));
                }
                sm90_join_lanes(largest, lane, ptx_max_nan);
                if (lane < 8 * groups) /* the others have the same */
                    peaks[strip_of(h) * n + 8 * j + sm90_column(lane, lane / 4)] = largest[0];
            }
        }
        own_team.sync();
    }

    __device__ __forceinline__ float peak_of_tile(int column, int turn) const
    {
        const float *peaks = shared.peaks_of_team(own_team.index, turn) + column;
        float peak = peaks[0];
#pragma unroll
        for (int strip = 1; strip < CUDA_REQUEST_SUBTILES; strip++)
            peak = ptx_max_nan(peak, peaks[strip * n]);
        return peak;
    }
};

} // namespace

#endif
