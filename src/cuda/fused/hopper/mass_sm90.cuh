/* SPDX-License-Identifier: Apache-2.0
 *
 * Masses of a tile's columns (docs/maths.md, section 5), from a consumer's accumulators. Each
 * sixteen tokens of a tile have a mass of their own, summed over all tiles of the CTA in order, so
 * that the order of the sums does not depend on the batch.
 */
#ifndef GUMBEL_CUDA_MASS_SM90_CUH
#define GUMBEL_CUDA_MASS_SM90_CUH

#include "cuda/common/draw.cuh"
#include "cuda/fused/hopper/lanes_sm90.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

template <int n> class tile_mass
{
    static constexpr int halves = sm90_consumer::halves;
    static constexpr int groups = sm90_groups<n>; /* of 8 columns: one set */
    static constexpr int rounds = n / 8 / groups; /* sets in a half of a tile */
    static constexpr int sets = halves * rounds;
    static constexpr int interleaved =
        sets < 4 ? sets : 4; /* interleaved, so that latencies overlap */

    using sums = sm90_sums<n>;

    const shared_sm90<n> &shared;
    float2 *const masses; /* [8][n] */
    int columns, thread, lane;
    float scale;

  public:
    template <class call>
    __device__ __forceinline__ tile_mass(const call &p, const shared_sm90<n> &memory, int index)
        : shared(memory), masses(memory.masses_of_consumer(p, sm90_consumer(index).index)),
          columns(p.template column_count<n>()), thread(index % sm90_consumer::threads),
          lane(index % 32), scale(p.scale())
    {
    }

    /* Adds the prepared tile in `sum`. A mass is relative to a reference z that was seen early.
     * Columns in which the tile exceeds this reference by 8 nats get a larger reference and are
     * added in a second pass, one set at a time; in the CTA's first tile these are all columns. The
     * difference to the reference is rounded once, which moves the log-normaliser by at most one
     * ulp of the reference. */
    __device__ __forceinline__ void add(const sums &sum, bool first_tile) const
    {
        uint32_t pending = lane / 4 < 2 * groups ? (1u << sets) - 1 : 0;
        if (!first_tile)
            pending = add_unraised(sum);
        for (uint32_t remaining = __reduce_or_sync(~0u, pending); remaining != 0;
             remaining &= remaining - 1) {
            int set = __ffs(remaining) - 1;
            float v[4 * groups];
            sm90_pick_round(sum, set, v);
            if (first_column(set) < columns)
                add_raised(v, set, pending >> set & 1);
        }
    }

  private:
    static __device__ __forceinline__ int first_column(int set)
    {
        return 8 * groups * (set % rounds);
    }

    static __device__ __forceinline__ const float *sums_of(const sums &sum, int set)
    {
        return sum[set / rounds] + 4 * groups * (set % rounds);
    }

    /* Masses of a set's columns. */
    __device__ __forceinline__ float2 *masses_of(int set) const
    {
        return masses + (thread / 32 + 4 * (set / rounds)) * n + first_column(set);
    }

    /* Mass of the column whose sum sm90_join_lanes() leaves in this lane. */
    __device__ __forceinline__ float2 *own_mass(int set) const
    {
        return &masses_of(set)[sm90_column(lane, lane / 4 % (2 * groups))];
    }

    __device__ __forceinline__ float z_of(float sum, int column) const
    {
        return (sum * scale) * shared.draws[column].inverse_temperature;
    }

    /* The first pass. Returns the sets whose column this lane has to add in the second pass. */
    __device__ __forceinline__ uint32_t add_unraised(const sums &sum) const
    {
        uint32_t pending = 0;
#pragma unroll
        for (int set = 0; set < sets; set += interleaved)
            if (first_column(set) < columns)
                pending |= add_interleaved(sum, set) << set;
        return pending;
    }

    /* The first pass of the sets from `first` on. */
    __device__ __forceinline__ uint32_t add_interleaved(const sums &sum, int first) const
    {
        const bool mine = lane / 4 < 2 * groups;
        float partial[interleaved][2 * groups];
        uint32_t pending = 0;
#pragma unroll
        for (int i = 0; i < interleaved; i++)
            sum_lane(sums_of(sum, first + i), first + i, partial[i]);
#pragma unroll
        for (int i = 0; i < interleaved; i++)
            sm90_join_lanes(partial[i], lane, [](float a, float b) { return a + b; });
#pragma unroll
        for (int i = 0; i < interleaved; i++)
            if (mine && partial[i][0] < 0x1p12f)
                own_mass(first + i)->y += partial[i][0];
            else if (mine)
                pending |= 1u << i;
        return pending;
    }

    /* Sums a lane's tokens of each of a set's columns. */
    __device__ __forceinline__ void sum_lane(const float *v, int set,
                                             float (&partial)[2 * groups]) const
    {
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            int column = sm90_column(lane, k), at = sm90_sum_index(k);
            float by = shared.draws[first_column(set) + column].inverse_temperature * LOG2E;
            float from = -LOG2E * masses_of(set)[column].x;
            partial[k] = ptx_exp2(fmaf(v[at] * scale, by, from)) +
                         ptx_exp2(fmaf(v[at + 2] * scale, by, from));
        }
    }

    /* The second pass, for the lanes whose column is pending. */
    __device__ __forceinline__ void add_raised(const float *v, int set, bool pending) const
    {
        float partial[2 * groups];
        pending = raise_reference(v, first_column(set), own_mass(set), pending);
        sum_lane(v, set, partial);
        sm90_join_lanes(partial, lane, [](float a, float b) { return a + b; });
        if (pending)
            own_mass(set)->y += partial[0];
    }

    /* Makes the pending masses relative to the largest z so far. A column without a finite z is no
     * longer pending. */
    __device__ __forceinline__ bool raise_reference(const float *v, int first, float2 *mass,
                                                    bool pending) const
    {
        float largest[2 * groups];
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            int column = first + sm90_column(lane, k), at = sm90_sum_index(k);
            largest[k] = fmaxf(z_of(v[at], column), z_of(v[at + 2], column));
        }
        sm90_join_lanes(largest, lane, [](float a, float b) { return fmaxf(a, b); });
        __syncwarp();
        if (pending) {
            float top = fmaxf(mass->x, largest[0]);
            pending = top > -INFINITY;
            if (pending)
                *mass = {top, mass->y * ptx_exp2((mass->x - top) * LOG2E)};
        }
        __syncwarp();
        return pending;
    }
};

} // namespace

#endif
