/* SPDX-License-Identifier: Apache-2.0
 *
 * Logits from a consumer's accumulators (layout: wgmma.cuh), before a draw or instead of one: adds
 * the bias and applies the soft-cap, sets tokens that do not count to -inf, stores all logits or
 * those above their bounds (bound_sm90.cuh), and stores the maximum of each tile and row.
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

/* Waits until the first bounds of all columns exist, for at most `patience` cycles; for one warp.
 * The bounds follow from tile maxima that all CTAs have just stored. Until all CTAs have started,
 * `shared` may hold values of an earlier replay. */
template <int words>
__device__ __noinline__ void wait_for_bounds(const uint64_t *shared, uint64_t tag, int columns,
                                             float *thresholds, uint32_t *flags, uint32_t patience)
{
    constexpr int backoff = 250; /* nanoseconds: a round trip to L2 takes thousands */
    const int lane = threadIdx.x % 32;
    const uint32_t began = clock();
    bool waits = true;
    while (waits && __any_sync(~0u, (uint32_t)clock() - began < patience)) {
        uint64_t shared_words[words];
        bool missing = false;
        __nanosleep(backoff);
        if (!__any_sync(~0u, lane == 0 && (atomicOr(flags, 0) & SM90_ALL_STARTED)))
            continue;
#pragma unroll
        for (int w = 0; w < words; w++) {
            const int column = 32 * w + lane;
            shared_words[w] =
                column < columns ? load_threshold(&shared[CUDA_THRESHOLD_WORDS * column]) : 0;
        }
#pragma unroll
        for (int w = 0; w < words; w++) {
            const int column = 32 * w + lane;
            const bool own = shared_words[w] > 0 && shared_words[w] >> THRESHOLD_BITS == tag;
            if (own)
                thresholds[column] = unpack_threshold(shared_words[w]);
            missing |= !own && column < columns;
        }
        waits = __any_sync(~0u, missing);
    }
}

template <int n, class call> class tile_logits
{
    using consumer = sm90_consumer;
    using sums = sm90_sums<n>;
    static constexpr int groups = sm90_groups<n>; /* of 8 columns, reduced at once */
    static constexpr int words = (n + 31) / 32;
    using subtile_bits = uint32_t[consumer::halves][words]; /* a bit a column, for each subtile */

    const call &p;
    const shared_sm90<n> &shared;
    int columns, lane, thread; /* in the consumer */
    uint32_t first;            /* token of the tile */
    const consumer own_consumer;

  public:
    /* For the tile that begins at token `first_token`; `index` is the thread's index. */
    __device__ __forceinline__ tile_logits(const call &params, const shared_sm90<n> &memory,
                                           uint32_t first_token, int index)
        : p(params), shared(memory), columns(params.template column_count<n>()), lane(index % 32),
          thread(index % consumer::threads), first(first_token), own_consumer(index)
    {
    }

    /* Stores the logits of the consumer's tile, its turn-th, and the maxima of its columns if the
     * call needs them. If bounds apply, stores only the subtiles that reach the bound of their
     * column, after waiting at most `patience` cycles for bounds; a negative patience, equal for
     * all threads of the consumer, does not wait. Overwrites `sum`. */
    __device__ __forceinline__ void store_tile(sums &sum, int turn, int patience) const
    {
        subtile_bits selected;
        select_all(selected);
        add_bias(sum);
#pragma unroll
        for (int h = 0; h < consumer::halves; h++)
            drop_past_end(sum, h);
        if (stores_by_bounds() && (p.problem.features & GUMBEL_FEATURE_MASK))
            drop_tokens(sum, shared.masks_of_consumer(own_consumer.index), 0);
        if (p.block_maxima)
            store_maxima(sum, turn);
        if (stores_by_bounds()) {
            if (patience >= 0) {
                if (thread < 32)
                    wait_for_bounds<words>(p.row_thresholds, p.tag, columns, shared.thresholds,
                                           shared.flags, (uint32_t)patience);
                own_consumer.sync();
            }
            mark_subtiles(turn, selected);
        }
        store_selected(sum, selected);
    }

    /* Applies, in place, bias, soft-cap and a negative scale, and sets tokens that do not count to
     * -inf. Each is rare. */
    __device__ __forceinline__ void prepare_sums(sums &sum) const
    {
        const gumbel_problem &q = p.problem;
        add_bias(sum);
#pragma unroll
        for (int h = 0; h < consumer::halves; h++) {
            if (p.prepares_logits())
#pragma unroll
                for (int k = 0; k < n / 2; k++)
                    sum[h][k] = q.soft_cap != 0.0f ? draw_soft_cap_logit(p, sum[h][k])
                                                   : sum[h][k] * q.scale;
            drop_past_end(sum, h);
        }
    }

    /* Sets the banned tokens of the consumer's tile, its turn-th, to -inf. */
    __device__ __forceinline__ void drop_removed(sums &sum, int turn) const
    {
        if (shared.removed_turn[own_consumer.index] == turn + 1)
            drop_tokens(sum, shared.removed_bits + n * own_consumer.index, ~0u);
    }

    /* Stores all logits of the consumer's tile, which are prepared. */
    __device__ __forceinline__ void store_all(const sums &sum) const
    {
        subtile_bits selected;
        select_all(selected);
        store_selected(sum, selected);
    }

  private:
    static __device__ __forceinline__ void select_all(subtile_bits &selected)
    {
#pragma unroll
        for (int i = 0; i < consumer::halves * words; i++)
            selected[i / words][i % words] = ~0u;
    }

    __device__ __forceinline__ void store_selected(const sums &sum,
                                                   const subtile_bits &selected) const
    {
#pragma unroll
        for (int h = 0; h < consumer::halves; h++) {
            int64_t at = token_of_half(h) - p.problem.first_token;
            int64_t remaining = p.problem.end_token - p.problem.first_token - at;
#pragma unroll
            for (int k = 0; k < n / 4; k++) {
                int column = sm90_column(lane, k), from = sm90_sum_index(k);
                uint32_t own = selected[h][k / 8] >> sm90_column(0, k % 8) >> 2 * (lane & 3);
                bool stays = column < columns && (own & 1);
                float *to = &p.logits_out[p.template row_of<n>(column) * p.logits_out_stride + at];
                if (stays && remaining > 1)
                    *(float2 *)to = {sum[h][from], sum[h][from + 2]};
                else if (stays && remaining == 1)
                    *to = sum[h][from];
            }
        }
    }

    /* Index in the tile of this warp's subtile of a half. */
    __device__ __forceinline__ int subtile_of_half(int half) const
    {
        static_assert(CUDA_MAXIMA_BLOCK == CUDA_SM90_TILE && CUDA_SUBTILE == 64 / 4,
                      "a warp has one subtile of each half");
        return thread / 32 + half * (64 / CUDA_SUBTILE);
    }

    /* The first of the thread's two tokens. */
    __device__ __forceinline__ int64_t token_of_half(int half) const
    {
        return first + sm90_place(thread) + 64 * half;
    }

    __device__ __forceinline__ void add_bias(sums &sum) const
    {
        const gumbel_problem &q = p.problem;
#pragma unroll
        for (int f = 0; f < 2 * consumer::halves && p.has_bias(); f++) {
            int64_t i = token_of_half(f / 2) + f % 2 - q.first_token;
            float add = i < q.vocab ? widen_element(q.bias.data, q.bias.dtype, i) : 0.0f;
#pragma unroll
            for (int k = 0; k < n / 2; k++)
                sum[f / 2][k] += (k >> 1 & 1) == f % 2 ? add : -0.0f;
        }
    }

    /* Sets tokens of a half that do not count to -inf, in place. */
    __device__ __forceinline__ void drop_past_end(sums &sum, int half) const
    {
        int64_t remaining = p.problem.end_token - token_of_half(half);
        if (remaining < CUDA_SM90_TILE)
#pragma unroll
            for (int k = 0; k < n / 2; k++)
                sum[half][k] = (k >> 1 & 1) < remaining ? sum[half][k] : -INFINITY;
    }

    /* Sets tokens to -inf, in place, whose bit of `column_bits` ^ `flip` is 0. */
    __device__ __forceinline__ void drop_tokens(sums &sum, const uint4 *column_bits,
                                                uint32_t flip) const
    {
        const uint32_t *masks = (const uint32_t *)column_bits;
        const uint32_t place = sm90_place(thread);
#pragma unroll
        for (int h = 0; h < consumer::halves; h++)
#pragma unroll
            for (int k = 0; k < n / 4; k++) {
                int at = 4 * sm90_column(lane, k) + place / 32 + 2 * h, from = sm90_sum_index(k);
                uint32_t allowed = (masks[at] ^ flip) >> place % 32;
                sum[h][from] = allowed & 1 ? sum[h][from] : -INFINITY;
                sum[h][from + 2] = allowed & 2 ? sum[h][from + 2] : -INFINITY;
            }
    }

    /* Which copy of the shared maxima the turn-th tile uses. Turns alternate, unless the second
     * copy holds the maxima of tokens that the history has not seen. */
    __device__ __forceinline__ int maxima_copy(int turn) const
    {
        return stores_by_bounds() && p.unseen_block_maxima ? 0 : turn;
    }

    /* Stores the largest logit of each column: reduces each subtile (7 shuffles for 32 columns),
     * then the tile; then the largest logit of the tokens that the history has not seen. */
    __device__ __forceinline__ void store_maxima(const sums &sum, int turn) const
    {
        const int64_t tile = tile_index();
        find_maxima(maxima_copy(turn), [&](int h, int at, int) { return sum[h][at]; });
        for (int column = thread; column < columns; column += consumer::threads)
            p.block_maxima[p.template row_of<n>(column) * p.block_maxima_stride + tile] =
                max_of_tile(column, maxima_copy(turn));
        if (!stores_by_bounds() || !p.unseen_block_maxima)
            return;
        const uint32_t *seen = (const uint32_t *)shared.seen_of_consumer(own_consumer.index);
        const uint32_t place = sm90_place(thread);
        find_maxima(1, [&](int h, int at, int column) {
            uint32_t bits = seen[4 * column + place / 32 + 2 * h] >> place % 32;
            return bits >> (at >> 1 & 1) & 1 ? -INFINITY : sum[h][at];
        });
        for (int column = thread; column < columns; column += consumer::threads)
            p.unseen_block_maxima[column * p.block_maxima_stride + tile] = max_of_tile(column, 1);
    }

    /* Selects the subtiles of the turn-th tile that are stored, for each column. Each warp computes
     * its own bits, so that no barrier is needed. */
    __device__ __forceinline__ void mark_subtiles(int turn, subtile_bits &selected) const
    {
        constexpr int warps = consumer::threads / 32;
#pragma unroll
        for (int w = 0; w < words; w++) {
            const int column = 32 * w + lane;
            uint32_t subtiles = column < columns ? subtiles_reaching(column, maxima_copy(turn)) : 0;
#pragma unroll
            for (int h = 0; h < consumer::halves; h++)
                selected[h][w] = __ballot_sync(~0u, subtiles >> subtile_of_half(h) & 1);
            if (column < columns && thread / 32 == w % warps)
                p.stored_subtiles[tile_index() * 32 * gumbel_mask_words_of(columns) + column] =
                    (uint8_t)subtiles;
        }
    }

    /* Bits of the subtiles of a column's tile that reach the bound. */
    __device__ __forceinline__ uint32_t subtiles_reaching(int column, int copy) const
    {
        const float *maxima = shared.maxima_of_consumer(own_consumer.index, copy) + column;
        const float bound = shared.thresholds[column];
        uint32_t subtiles = 0;
#pragma unroll
        for (int i = 0; i < CUDA_SUBTILES; i++)
            subtiles |= (uint32_t) !(maxima[i * n] < bound) << i;
        return subtiles;
    }

    __device__ __forceinline__ int64_t tile_index() const
    {
        return (first - p.problem.first_token) / CUDA_SM90_TILE;
    }

    __device__ __forceinline__ bool stores_by_bounds() const { return p.by_bounds(); }

    /* Computes the largest value(half, index of the sum, column) of each subtile; for all threads
     * of the consumer. */
    template <class F> __device__ __forceinline__ void find_maxima(int turn, F value) const
    {
        float *maxima = shared.maxima_of_consumer(own_consumer.index, turn);
#pragma unroll
        for (int j = 0; j < n / 8; j += groups) {
            if (8 * j >= columns)
                break;
#pragma unroll
            for (int h = 0; h < consumer::halves; h++) {
                float largest[2 * groups];
#pragma unroll
                for (int k = 0; k < 2 * groups; k++) {
                    int at = 4 * j + sm90_sum_index(k), column = 8 * j + sm90_column(lane, k);
                    largest[k] = ptx_max_nan(value(h, at, column), value(h, at + 2, column));
                }
                sm90_join_lanes(largest, lane, ptx_max_nan);
                if (lane < 8 * groups) /* the other lanes hold the same values */
                    maxima[subtile_of_half(h) * n + 8 * j + sm90_column(lane, lane / 4)] =
                        largest[0];
            }
        }
        own_consumer.sync();
    }

    __device__ __forceinline__ float max_of_tile(int column, int turn) const
    {
        const float *maxima = shared.maxima_of_consumer(own_consumer.index, turn) + column;
        float largest = maxima[0];
#pragma unroll
        for (int subtile = 1; subtile < CUDA_SUBTILES; subtile++)
            largest = ptx_max_nan(largest, maxima[subtile * n]);
        return largest;
    }
};

} // namespace

#endif
