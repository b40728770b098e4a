/* SPDX-License-Identifier: Apache-2.0
 *
 * The masses of a tile's columns (docs/maths.md, section 5), from a team's accumulators. Every
 * sixteen tokens of a tile have masses of their own, over all tiles of the CTA in turn, so that the
 * order of the sums does not depend on the batch.
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
    static constexpr int halves = sm90_team<n>::halves;
    static constexpr int groups = sm90_groups<n>; /* of 8 columns: a set */
    static constexpr int rounds = n / 8 / groups; /* sets in a half */
    static constexpr int sets = halves * rounds;
    static constexpr int side = sets < 4 ? sets : 4; /* sets at once, so that latencies overlap */

    using sums = sm90_sums<n>;

    const shared_sm90<n> &shared;
    int columns, thread, lane;
    float scale;

  public:
    /* `scale` turns a logit to z, before the temperature. */
    __device__ __forceinline__ tile_mass(const shared_sm90<n> &memory, int batch, float scale_of_z,
                                         int index)
        : shared(memory), columns(batch), thread(index % sm90_team<n>::threads), lane(index % 32),
          scale(scale_of_z)
    {
    }

    /* Add the prepared tile in `sum`. A mass is relative to a z that was seen early; columns where
     * the tile goes 8 nats above it have that z raised, and are added in a second pass, a set at a
     * time: in the CTA's first tile all of them. z less that one is rounded once, which moves the
     * log-normaliser by an ulp of it at most. */
    __device__ __forceinline__ void add(const sums &sum, bool first_tile) const
    {
        uint32_t waits = lane / 4 < 2 * groups ? (1u << sets) - 1 : 0;
        if (!first_tile)
            waits = add_passing(sum);
        for (uint32_t left = __reduce_or_sync(~0u, waits); left != 0; left &= left - 1) {
            int set = __ffs(left) - 1;
            float v[4 * groups];
            sm90_pick(sum, set, v);
            if (first_column(set) < columns)
                add_raised(v, set, waits >> set & 1);
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

    /* The masses of a set's columns. */
    __device__ __forceinline__ float2 *masses_of(int set) const
    {
        return shared.masses + (thread / 32 + 4 * (set / rounds)) * n + first_column(set);
    }

    /* That of the column which sm90_join_lanes() leaves to this lane. */
    __device__ __forceinline__ float2 *own_mass(int set) const
    {
        return &masses_of(set)[sm90_column(lane, lane / 4 % (2 * groups))];
    }

    __device__ __forceinline__ float z_of(float sum, int column) const
    {
        return (sum * scale) * shared.draws[column].inverse_temperature;
    }

    /* The first pass. Returns the sets whose column this lane has to add in the second one. */
    __device__ __forceinline__ uint32_t add_passing(const sums &sum) const
    {
        uint32_t waits = 0;
#pragma unroll
        for (int set = 0; set < sets; set += side)
            if (first_column(set) < columns)
                waits |= add_side(sum, set) << set;
        return waits;
    }

    /* That of the sets from `first` on. */
    __device__ __forceinline__ uint32_t add_side(const sums &sum, int first) const
    {
        const bool mine = lane / 4 < 2 * groups;
        float part[side][2 * groups];
        uint32_t waits = 0;
#pragma unroll
        for (int i = 0; i < side; i++)
            find_parts(sums_of(sum, first + i), first + i, part[i]);
#pragma unroll
        for (int i = 0; i < side; i++)
            sm90_join_lanes(part[i], lane, [](float a, float b) { return a + b; });
#pragma unroll
        for (int i = 0; i < side; i++)
            if (mine && part[i][0] < 0x1p12f)
                own_mass(first + i)->y += part[i][0];
            else if (mine)
                waits |= 1u << i;
        return waits;
    }

    /* What a lane has of the masses of a set's columns. */
    __device__ __forceinline__ void find_parts(const float *v, int set,
                                               float (&part)[2 * groups]) const
    {
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            int column = sm90_column(lane, k), at = sm90_sum(k);
            float by = shared.draws[first_column(set) + column].inverse_temperature * LOG2E;
            float from = -LOG2E * masses_of(set)[column].x;
            part[k] = ptx_exp2(fmaf(v[at] * scale, by, from)) +
                      ptx_exp2(fmaf(v[at + 2] * scale, by, from));
        }
    }

    /* The second pass, of the lanes that wait. */
    __device__ __forceinline__ void add_raised(const float *v, int set, bool waits) const
    {
        float part[2 * groups];
        waits = raise(v, first_column(set), own_mass(set), waits);
        find_parts(v, set, part);
        sm90_join_lanes(part, lane, [](float a, float b) { return a + b; });
        if (waits)
            own_mass(set)->y += part[0];
    }

    /* Make the masses of the lanes that wait relative to the largest z so far. A column that has
     * none yet waits no more. */
    __device__ __forceinline__ bool raise(const float *v, int first, float2 *mass, bool waits) const
    {
        float largest[2 * groups];
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            int column = first + sm90_column(lane, k), at = sm90_sum(k);
            largest[k] = fmaxf(z_of(v[at], column), z_of(v[at + 2], column));
        }
        sm90_join_lanes(largest, lane, [](float a, float b) { return fmaxf(a, b); });
        __syncwarp();
        if (waits) {
            float top = fmaxf(mass->x, largest[0]);
            waits = top > -INFINITY;
            if (waits)
                *mass = {top, mass->y * ptx_exp2((mass->x - top) * LOG2E)};
        }
        __syncwarp();
        return waits;
    }
};

} // namespace

#endif
