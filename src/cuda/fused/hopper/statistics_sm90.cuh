/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls with statistics, that is with banned tokens, entropies or the two largest z of each row:
 * the service warps mark the banned tokens of each tile, and maintain the lower bound on each row's
 * second largest z.
 */
#ifndef GUMBEL_CUDA_STATISTICS_SM90_CUH
#define GUMBEL_CUDA_STATISTICS_SM90_CUH

#include "core/row.h"
#include "cuda/fused/tile/tops_sm90.cuh"

namespace
{

/* The work of a service thread in a call with statistics. A load takes several microseconds while
 * weights are copied; the thread therefore loads the values that a tile requires in advance, or
 * issues all their loads together. */
template <int n, class call> class statistics_server
{
    static constexpr int turns = (n + SM90_SERVE_THREADS - 1) / SM90_SERVE_THREADS;
    /* The first kFirstTokens of a list are loaded once, into registers. A whole warp reads a list
     * of more than kShortList tokens. */
    static constexpr int kFirstTokens = 2, kShortList = 16;

    struct token_list {
        int32_t count; /* length of the list; kShortList + 1 if it is longer than kShortList */
        int32_t first[kFirstTokens];
    };

    const call &p;
    const shared_sm90<n> &shared;
    const int thread;
    token_list lists[turns]; /* banned tokens of this thread's rows */
    float published[turns];  /* the largest z of these rows that this thread has published */

  public:
    __device__ __forceinline__ statistics_server(const call &params, const shared_sm90<n> &memory,
                                                 int server)
        : p(params), shared(memory), thread(server)
    {
#pragma unroll
        for (int k = 0; k < turns; k++) {
            lists[k] = {};
            published[k] = -INFINITY;
            if (bans_tokens() && has_row(k))
                lists[k] = list_of_column(row_at(k));
        }
    }

    /* Marks the banned tokens of the tile that begins at token `first`, the CTA's tile number
     * `turn`. The caller has waited until the tile's consumer has drawn from its previous tile. */
    __device__ __forceinline__ void mark_removed_tokens(uint32_t first, int turn) const
    {
        const int consumer = turn % sm90_consumer::consumers;
        uint4 *const bits = shared.removed_bits + consumer * n;
        bool found = false;
        if (!bans_tokens())
            return;
#pragma unroll
        for (int k = 0; k < turns; k++) {
            const token_list &list = lists[k];
            const int i = row_at(k);
            if (i < n)
                bits[i] = {0, 0, 0, 0};
            __syncwarp();
#pragma unroll
            for (int j = 0; j < kFirstTokens; j++)
                if (j < list.count)
                    found |= mark_token(bits + i, list.first[j] - first);
            if (list.count > kFirstTokens && list.count <= kShortList)
                found |= mark_list(p, bits + i, i, 0, 1, first);
            for (uint32_t lanes = __ballot_sync(~0u, list.count > kShortList); lanes != 0;
                 lanes &= lanes - 1) {
                const int column = i - thread % 32 + __ffs(lanes) - 1;
                found |= mark_list(p, bits + column, column, thread % 32, 32, first);
            }
        }
        if (found)
            shared.removed_turn[consumer] = turn / sm90_consumer::consumers + 1;
    }

    /* Raises the bounds of this thread's rows to this CTA's second largest z, and publishes each
     * row's largest z if it has risen. All candidates have been scored. */
    __device__ __forceinline__ void publish_tops()
    {
        const top_thresholds<n, call> all(p, shared);
#pragma unroll
        for (int k = 0; k < turns; k++)
            if (p.finds_tops() && has_row(k)) {
                const sm90_tops own = shared.tops[row_at(k)];
                all.raise_bound(row_at(k), draw_threshold(own.z[1]));
                if (own.z[0] > published[k])
                    all.publish_largest(row_at(k), own.z[0], {0, 0});
                published[k] = own.z[0];
            }
    }

    /* The two words in global memory (tops_sm90.cuh) of each row of this thread. */
    struct top_words {
        ulonglong2 of[turns];
    };
    __device__ __forceinline__ top_words load_tops() const
    {
        top_words words = {};
#pragma unroll
        for (int k = 0; k < turns; k++)
            if (p.finds_tops() && has_row(k))
                words.of[k] = top_thresholds<n, call>(p, shared).load_words(row_at(k));
        return words;
    }

    /* Raises the bound of this thread's k-th row to its words. */
    __device__ __forceinline__ void raise_top(int k, const top_words &words) const
    {
        if (p.finds_tops())
            top_thresholds<n, call>(p, shared).raise_to_words(row_at(k), words.of[k]);
    }

  private:
    __device__ __forceinline__ bool bans_tokens() const
    {
        return call::has_statistics && p.problem.features & GUMBEL_FEATURE_BANNED;
    }

    /* The column of the thread's k-th row. */
    __device__ __forceinline__ int row_at(int k) const { return thread + k * SM90_SERVE_THREADS; }
    __device__ __forceinline__ bool has_row(int k) const
    {
        return row_at(k) < p.template column_count<n>();
    }

    __device__ __forceinline__ token_list list_of_column(int i) const
    {
        const int64_t *offsets = offsets_of_column(p, i);
        token_list list = {(int32_t)min(offsets[1] - offsets[0], (int64_t)kShortList + 1), {}};
#pragma unroll
        for (int j = 0; j < kFirstTokens; j++)
            if (j < list.count)
                list.first[j] = p.problem.transforms.banned.ids[offsets[0] + j];
        return list;
    }

    static __device__ __forceinline__ const int64_t *offsets_of_column(const call &p, int i)
    {
        return p.problem.transforms.banned.offsets +
               gumbel_problem_list_of_row(&p.problem, p.template row_of<n>(i));
    }

    /* Marks token `place` of the tile. Returns false if `place` is outside the tile. */
    static __device__ __forceinline__ bool mark_token(uint4 *bits, uint32_t place)
    {
        if (place >= CUDA_SM90_TILE)
            return false;
        atomicOr((uint32_t *)bits + place / 32, 1u << place % 32);
        return true;
    }

    /* Marks elements `from`, `from + stride`, ... of a column's list. Returns whether the tile
     * holds any of them. */
    static __device__ __noinline__ bool mark_list(const call &p, uint4 *bits, int column, int from,
                                                  int stride, uint32_t first)
    {
        const int64_t *offsets = offsets_of_column(p, column);
        bool found = false;
        for (int64_t k = offsets[0] + from; k < offsets[1]; k += stride)
            found |= mark_token(bits, p.problem.transforms.banned.ids[k] - first);
        return found;
    }
};

} // namespace

#endif
