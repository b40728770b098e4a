/* SPDX-License-Identifier: Apache-2.0
 *
 * Masses of a tile's columns (docs/maths.md, section 5), from a consumer's accumulators. The 32
 * tokens of a tile that a warp holds have a mass of their own, summed over all tiles of the CTA in
 * order, so that the order of the sums does not depend on the batch.
 */
#ifndef GUMBEL_CUDA_MASS_SM90_CUH
#define GUMBEL_CUDA_MASS_SM90_CUH

#include "cuda/common/draw.cuh"
#include "cuda/fused/hopper/lanes_sm90.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

/* A lane's sums of its tokens of some columns: of exp2(t), and of t exp2(t) if entropies are
 * requested. */
template <int columns, bool weighted> struct mass_terms {
    float sum[columns], weight[weighted ? columns : 1];

    __device__ __forceinline__ mass_terms()
    {
#pragma unroll
        for (int k = 0; k < columns; k++)
            sum[k] = weight[weighted ? k : 0] = 0.0f;
    }

    /* Adds two tokens. */
    __device__ __forceinline__ void add(int column, float t0, float t1)
    {
        /* exp2(least) is 0, as exp2(-inf) is; 0 * least is 0, but 0 * -inf would be NaN. */
        constexpr float least = -200.0f;
        const float e0 = ptx_exp2(t0), e1 = ptx_exp2(t1);
        sum[column] += e0 + e1;
        if constexpr (weighted)
            weight[column] = fmaf(e0, fmaxf(t0, least), fmaf(e1, fmaxf(t1, least), weight[column]));
    }

    /* As sm90_join_lanes(). */
    __device__ __forceinline__ void join(int lane)
    {
        sm90_join_lanes(sum, lane, [](float a, float b) { return a + b; });
        if constexpr (weighted)
            sm90_join_lanes(weight, lane, [](float a, float b) { return a + b; });
    }
};

template <int n, class call> class tile_mass
{
    static constexpr int halves = sm90_consumer::halves;
    static constexpr int groups = sm90_groups<n>; /* of 8 columns: a round */
    static constexpr int rounds = n / 8 / groups; /* of a tile */
    /* Rounds that are interleaved, so that latencies overlap. */
    static constexpr int interleaved = rounds < 2 ? rounds : 2;

    using terms = mass_terms<2 * groups, call::has_statistics>;
    using sums = sm90_sums<n>;

    const shared_sm90<n> &shared;
    float2 *const masses; /* [mass_groups][n] */
    int columns, thread, lane;
    float scale;

  public:
    __device__ __forceinline__ tile_mass(const call &p, const shared_sm90<n> &memory, int index)
        : shared(memory), masses(memory.masses_of_consumer(p, sm90_consumer(index).index)),
          columns(p.template column_count<n>()), thread(index % sm90_consumer::threads),
          lane(index % 32), scale(p.scale())
    {
    }

    /* Adds the prepared tile in `sum`. A mass is relative to a reference z that was seen early.
     * Columns in which the tile exceeds this reference by 8 nats get a larger reference and are
     * added in a second pass, one round at a time; in the CTA's first tile these are all columns.
     * The difference to the reference is rounded once, which moves the log-normaliser by at most
     * one ulp of the reference. */
    __device__ __forceinline__ void add(const sums &sum, bool first_tile) const
    {
        uint32_t pending = lane / 4 < 2 * groups ? (1u << rounds) - 1 : 0;
        if (!first_tile)
            pending = add_unraised(sum);
        for (uint32_t remaining = __reduce_or_sync(~0u, pending); remaining != 0;
             remaining &= remaining - 1) {
            const int round = __ffs(remaining) - 1;
            float v[halves][4 * groups];
#pragma unroll
            for (int half = 0; half < halves; half++)
                sm90_pick_round(sum, half * rounds + round, v[half]);
            if (first_column(round) < columns)
                add_raised({v[0], v[1]}, round, pending >> round & 1);
        }
    }

  private:
    /* A round's accumulators in the two halves of the tile. */
    struct round_sums {
        const float *half[halves];
    };

    static __device__ __forceinline__ int first_column(int round) { return 8 * groups * round; }

    static __device__ __forceinline__ round_sums sums_of(const sums &sum, int round)
    {
        return {sum[0] + 4 * groups * round, sum[1] + 4 * groups * round};
    }

    /* Masses of a round's columns. */
    __device__ __forceinline__ float2 *masses_of(int round) const
    {
        return masses + thread / 32 * n + first_column(round);
    }

    /* Mass of the column whose sum sm90_join_lanes() leaves in this lane. */
    __device__ __forceinline__ float2 *own_mass(int round) const
    {
        return &masses_of(round)[sm90_column(lane, lane / 4 % (2 * groups))];
    }

    /* The sum of t exp2(t) of the tokens of a mass (shared_sm90::weights). */
    __device__ __forceinline__ float *weight_of(const float2 *mass) const
    {
        return shared.weights + (mass - shared.masses);
    }

    __device__ __forceinline__ float z_of(float sum, int column) const
    {
        return (sum * scale) * shared.draws[column].inverse_temperature;
    }

    /* The first pass. Returns the rounds whose column this lane has to add in the second pass. */
    __device__ __forceinline__ uint32_t add_unraised(const sums &sum) const
    {
        uint32_t pending = 0;
#pragma unroll
        for (int round = 0; round < rounds; round += interleaved)
            if (first_column(round) < columns)
                pending |= add_interleaved(sum, round) << round;
        return pending;
    }

    /* The first pass of the rounds from `first` on. */
    __device__ __forceinline__ uint32_t add_interleaved(const sums &sum, int first) const
    {
        const bool mine = lane / 4 < 2 * groups;
        terms partial[interleaved];
        uint32_t pending = 0;
#pragma unroll
        for (int i = 0; i < interleaved; i++)
            sum_lane(sums_of(sum, first + i), first + i, partial[i]);
#pragma unroll
        for (int i = 0; i < interleaved; i++)
            partial[i].join(lane);
#pragma unroll
        for (int i = 0; i < interleaved; i++)
            if (mine && partial[i].sum[0] < 0x1p12f)
                add_terms(own_mass(first + i), partial[i]);
            else if (mine)
                pending |= 1u << i;
        return pending;
    }

    /* Adds joined terms to a column's mass. */
    __device__ __forceinline__ void add_terms(float2 *mass, const terms &joined) const
    {
        mass->y += joined.sum[0];
        if constexpr (call::has_statistics)
            *weight_of(mass) += joined.weight[0];
    }

    /* Sums a lane's tokens of each of a round's columns. */
    __device__ __forceinline__ void sum_lane(round_sums v, int round, terms &partial) const
    {
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            const int column = sm90_column(lane, k), at = sm90_sum_index(k);
            const float by = shared.draws[first_column(round) + column].inverse_temperature * LOG2E;
            const float from = -LOG2E * masses_of(round)[column].x;
#pragma unroll
            for (int half = 0; half < halves; half++)
                partial.add(k, fmaf(v.half[half][at] * scale, by, from),
                            fmaf(v.half[half][at + 2] * scale, by, from));
        }
    }

    /* The second pass, for the lanes whose column is pending. */
    __device__ __forceinline__ void add_raised(round_sums v, int round, bool pending) const
    {
        terms partial;
        pending = raise_reference(v, first_column(round), own_mass(round), pending);
        sum_lane(v, round, partial);
        partial.join(lane);
        if (pending)
            add_terms(own_mass(round), partial);
    }

    /* Makes a mass relative to `top`, which is at least its reference. */
    __device__ __forceinline__ void raise_mass(float2 *mass, float top) const
    {
        const float below = (mass->x - top) * LOG2E, factor = ptx_exp2(below);
        if constexpr (call::has_statistics)
            if (below > -INFINITY)
                *weight_of(mass) = fmaf(mass->y, below, *weight_of(mass)) * factor;
        *mass = {top, mass->y * factor};
    }

    /* Makes the pending masses relative to the largest z so far. A column without a finite z is no
     * longer pending. */
    __device__ __forceinline__ bool raise_reference(round_sums v, int first, float2 *mass,
                                                    bool pending) const
    {
        float largest[2 * groups];
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            const int column = first + sm90_column(lane, k), at = sm90_sum_index(k);
            largest[k] = -INFINITY;
#pragma unroll
            for (int half = 0; half < halves; half++)
                largest[k] = fmaxf(largest[k], fmaxf(z_of(v.half[half][at], column),
                                                     z_of(v.half[half][at + 2], column)));
        }
        sm90_join_lanes(largest, lane, [](float a, float b) { return fmaxf(a, b); });
        __syncwarp();
        if (pending) {
            float top = fmaxf(mass->x, largest[0]);
            pending = top > -INFINITY;
            if (pending)
                raise_mass(mass, top);
        }
        __syncwarp();
        return pending;
    }
};

} // namespace

#endif
