/* SPDX-License-Identifier: Apache-2.0
 *
 * A lower bound of the logits that can affect a row's outputs, from the maxima of the tiles that
 * are already computed (bound_sm90.cuh).
 */
#ifndef GUMBEL_CUDA_ROW_BOUND_CUH
#define GUMBEL_CUDA_ROW_BOUND_CUH

#include "cuda/common/row_thresholds.cuh"
#include "cuda/truncated/row/required_tokens.cuh"

namespace
{

/* Tile maxima that a lane reads. Tiles after the first 32 times as many raise no bound. */
constexpr int kMaximaPerLane = 40;
/* The bisection stops when at most one eighth more maxima than required reach the bound, as each
 * step takes 200 cycles. */
constexpr uint32_t kBoundSlack = 8;
/* How a row's truncation and outputs determine its bound: ranks among the tile maxima, from 1
 * on. */
struct row_bound {
    int rank;       /* how many tokens the row needs; 0: all */
    int top_rank;   /* rank of the maximum from which min_p counts; 0: no min_p */
    float distance; /* of min_p, in logits */
};

/* The ranks of row b; both are 0 if every token of the row can affect its outputs. */
__device__ __forceinline__ row_bound row_bound_of(const cuda_params &p, int64_t b)
{
    const gumbel_problem &q = p.problem;
    const truncated_row row = load_truncated_row(q, b);
    required_tokens wanted;
    row_bound bound = {0, 0, 0.0f};
    const logit_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    const float lower = q.scale * fminf(values.inverse_temperature, 1.0f);
    const float upper = q.scale * fmaxf(values.inverse_temperature, 1.0f);
    if (!candidates_suffice(p, row, row.draw.greedy, wanted) ||
        !block_maxima_bound_tokens(q, row) || lower < 1 / kScaleMax || upper > kScaleMax)
        return bound;
    bool by_min_p = wanted.log_min_p > -INFINITY && (wanted.target == 0 || wanted.either);
    if (wanted.target > 0)
        bound.rank = (int)wanted.target;
    if (by_min_p) {
        float unit = q.scale * values.scale();
        bound.top_rank = 1;
        bound.distance = -1.001f * gumbel_min_p_bound(0.0f, wanted.log_min_p) / unit;
    }
    return bound;
}

/* A bound far enough below `reached` that after rounding no token below the bound equals a token at
 * `reached`. The bound is at most kScaleMax, so that every logit that could overflow is stored. */
__device__ __forceinline__ float bound_below(float reached)
{
    return fminf(reached, kScaleMax) - fmaxf(fabsf(reached) * 0x1p-18f, 0x1p-38f);
}

/* The tile maxima of a row, held by one warp as keys with the same order; 0: not stored yet. */
struct row_maxima {
    uint32_t keys[kMaximaPerLane];

    __device__ __forceinline__ row_maxima(const float *maxima, int count, int lane)
    {
#pragma unroll
        for (int i = 0; i < kMaximaPerLane; i++)
            keys[i] = lane + 32 * i < count ? ordered_bits(__ldcg(&maxima[lane + 32 * i])) : 0;
    }

    /* How many maxima reach a key. Four partial sums, as one would be a chain of dependent adds. */
    __device__ __forceinline__ uint32_t count_reaching(uint32_t key) const
    {
        uint32_t own[4] = {};
#pragma unroll
        for (int i = 0; i < kMaximaPerLane; i++)
            own[i % 4] += keys[i] >= key;
        return __reduce_add_sync(~0u, own[0] + own[1] + own[2] + own[3]);
    }

    /* Returns a value that `rank` maxima, or a few more, reach; -inf if fewer than `rank` maxima
     * are stored. `present` is the number of stored maxima. Bisects to the precision of a shared
     * threshold. */
    __device__ __forceinline__ float find_reached(uint32_t rank, uint32_t present) const
    {
        uint32_t low = ~0u, high = 0;
#pragma unroll
        for (int i = 0; i < kMaximaPerLane; i++) {
            low = min(low, keys[i] - 1); /* wraps for maxima that are not stored yet */
            high = max(high, keys[i]);
        }
        low = __reduce_min_sync(~0u, low) + 1;
        high = __reduce_max_sync(~0u, high);
        if (rank == 1)
            low = high;
        uint32_t reach = rank <= present ? present : 0;
#pragma unroll 1
        do {
            uint32_t middle = low + (high - low) / 2, upper = count_reaching(middle);
            low = upper >= rank ? middle : low;
            high = upper >= rank ? high : middle;
            reach = upper >= rank ? upper : reach;
        } while (reach > rank + rank / kBoundSlack && high - low > 1u << (32 - THRESHOLD_BITS));
        return reach && low > ordered_bits(-INFINITY) ? ordered_float(low) : -INFINITY;
    }

    /* All tokens that min_p keeps are above this value; -inf: unknown. */
    __device__ __forceinline__ float min_p_bound(const row_bound &wanted, uint32_t present) const
    {
        float value = find_reached(wanted.top_rank, present) - wanted.distance;
        return value < INFINITY ? value : -INFINITY;
    }
};

/* A row's bound, and how many of its maxima are stored. */
struct bound_found {
    float bound;
    int present;
};

/* Computes the bound from a row's first `count` maxima; by one warp. Skips the search if no more
 * than `known` maxima are stored, which it would not improve. Not inlined, to save registers. */
__device__ __noinline__ bound_found find_row_bound(const float *maxima, int count, row_bound wanted,
                                                   int known)
{
    const row_maxima all(maxima, count, threadIdx.x % 32);
    bound_found found = {-INFINITY, (int)all.count_reaching(1)};
    if (found.present <= known)
        return found;
    found.bound = wanted.rank > 0 ? all.find_reached(wanted.rank, found.present) : INFINITY;
    if (wanted.top_rank > 0)
        found.bound = fminf(found.bound, all.min_p_bound(wanted, found.present));
    return found;
}

} // namespace

#endif
