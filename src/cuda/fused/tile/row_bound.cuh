/* SPDX-License-Identifier: Apache-2.0
 *
 * What a row's peaks, the largest logits of its tiles, tell of it while others are still to come: a
 * bound that all of its tokens which can matter reach (bound_sm90.cuh).
 */
#ifndef GUMBEL_CUDA_ROW_BOUND_CUH
#define GUMBEL_CUDA_ROW_BOUND_CUH

#include "cuda/common/row_thresholds.cuh"
#include "cuda/request/row/request_wanted.cuh"

namespace
{

/* Peaks of a row that a lane looks at: those of tiles past 32 times as many raise no bound. */
constexpr int kPeaksOfLane = 40;
/* A bound may be reached by an eighth more peaks than it must be: each halving is 200 cycles. */
constexpr uint32_t kBoundSlack = 8;
/* What bounds the blocks that a row's request looks into, as ranks among its peaks, from 1 on. */
struct row_bound {
    int rank;       /* of a peak that this many tokens wanted reach; 0: nothing asks for them */
    int top;        /* of a peak that the largest logit wanted is not below; 0: no min_p */
    float distance; /* of min_p, in logits */
};

/* That of row b; both ranks are 0 where all of the row can matter. */
__device__ __forceinline__ row_bound row_bound_of(const cuda_params &p, int64_t b)
{
    const gumbel_problem &q = p.problem;
    const request_row row = request_row_of(q, b);
    request_wanted wanted;
    row_bound bound = {0, 0, 0.0f};
    const request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    const float lower = q.scale * fminf(values.inverse_temperature, 1.0f);
    const float upper = q.scale * fmaxf(values.inverse_temperature, 1.0f);
    if (!can_screen(p, row, row.draw.greedy, wanted) || !blocks_bound(q, row) ||
        lower < 1 / kScaleMost || upper > kScaleMost)
        return bound;
    bool by_min_p = wanted.log_min_p > -INFINITY && (wanted.target == 0 || wanted.both);
    if (wanted.target > 0)
        bound.rank = (int)wanted.target;
    if (by_min_p) {
        float unit = q.scale * values.scale();
        bound.top = 1;
        bound.distance = -1.001f * gumbel_min_p_bound(0.0f, wanted.log_min_p) / unit;
    }
    return bound;
}

/* A bound that is so far below `reached` that rounding makes no equals of what lies at it and what
 * lies below the bound, and that leaves out nothing that could become infinite. */
__device__ __forceinline__ float bound_below(float reached)
{
    return fminf(reached, kScaleMost) - fmaxf(fabsf(reached) * 0x1p-18f, 0x1p-38f);
}

/* Peaks of a row, a warp's, as keys whose order is theirs; 0 for those that are not there. */
struct row_peaks {
    uint32_t keys[kPeaksOfLane];

    __device__ __forceinline__ row_peaks(const float *peaks, int count, int lane)
    {
#pragma unroll
        for (int i = 0; i < kPeaksOfLane; i++)
            keys[i] = lane + 32 * i < count ? ordered_bits(__ldcg(&peaks[lane + 32 * i])) : 0;
    }

    /* How many reach a key; in four sums, as one would be a chain. */
    __device__ __forceinline__ uint32_t count_from(uint32_t key) const
    {
        uint32_t own[4] = {};
#pragma unroll
        for (int i = 0; i < kPeaksOfLane; i++)
            own[i % 4] += keys[i] >= key;
        return __reduce_add_sync(~0u, own[0] + own[1] + own[2] + own[3]);
    }

    /* What at least `rank` of them reach, and not many more, of which `present` are there; -inf
     * where these are fewer. Halved into, down to what a floor tells apart. */
    __device__ __forceinline__ float reached_by(uint32_t rank, uint32_t present) const
    {
        uint32_t low = ~0u, high = 0;
#pragma unroll
        for (int i = 0; i < kPeaksOfLane; i++) {
            low = min(low, keys[i] - 1); /* wraps for those that are not there */
            high = max(high, keys[i]);
        }
        low = __reduce_min_sync(~0u, low) + 1;
        high = __reduce_max_sync(~0u, high);
        if (rank == 1)
            low = high;
        uint32_t reach = rank <= present ? present : 0;
#pragma unroll 1
        do {
            uint32_t middle = low + (high - low) / 2, upper = count_from(middle);
            low = upper >= rank ? middle : low;
            high = upper >= rank ? high : middle;
            reach = upper >= rank ? upper : reach;
        } while (reach > rank + rank / kBoundSlack && high - low > 1u << (32 - THRESHOLD_BITS));
        return reach && low > ordered_bits(-INFINITY) ? ordered_float(low) : -INFINITY;
    }

    /* What min_p keeps lies above; -inf where that is not known. */
    __device__ __forceinline__ float kept_from(const row_bound &wanted, uint32_t present) const
    {
        float least = reached_by(wanted.top, present) - wanted.distance;
        return least < INFINITY ? least : -INFINITY;
    }
};

/* What peaks tell: a bound, and how many there are. */
struct peaks_found {
    float bound;
    int present;
};

/* What a row's first `count` peaks tell; by a warp. Where no more are there than `known`, the bound
 * is not looked for. Apart, for its registers. */
__device__ __noinline__ peaks_found look_at_peaks(const float *peaks, int count, row_bound wanted,
                                                  int known)
{
    const row_peaks all(peaks, count, threadIdx.x % 32);
    peaks_found found = {-INFINITY, (int)all.count_from(1)};
    if (found.present <= known)
        return found;
    found.bound = wanted.rank > 0 ? all.reached_by(wanted.rank, found.present) : INFINITY;
    if (wanted.top > 0)
        found.bound = fminf(found.bound, all.kept_from(wanted, found.present));
    return found;
}

} // namespace

#endif
