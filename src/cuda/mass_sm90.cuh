/* SPDX-License-Identifier: Apache-2.0
 *
 * The masses of a tile's columns (docs/maths.md, section 5), from a team's accumulators. Every
 * sixteen tokens of a tile have masses of their own, over all tiles of the CTA in turn, so that the
 * order of the sums does not depend on the batch.
 */
#ifndef GUMBEL_CUDA_MASS_SM90_CUH
#define GUMBEL_CUDA_MASS_SM90_CUH

#include "cuda/draw.cuh"
#include "cuda/lanes_sm90.cuh"
#include "cuda/shared_sm90.cuh"

namespace
{

template <int n> class tile_mass
{
    static constexpr int groups = sm90_groups<n>; /* of 8 columns, summed at once */

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

    /* Add the prepared tile in `sum`. */
    __device__ __forceinline__ void add(const float (&sum)[sm90_team<n>::halves][n / 2]) const
    {
#pragma unroll
        for (int half = 0; half < sm90_team<n>::halves; half++) {
            int sixteen = thread / 32 + 4 * half;
#pragma unroll
            for (int j = 0; j < n / 8; j += groups)
                if (8 * j < columns)
                    add_groups(sum[half] + 4 * j, 8 * j, shared.masses + sixteen * n);
        }
    }

  private:
    __device__ __forceinline__ float z_of(float sum, int column) const
    {
        return (sum * scale) * shared.draws[column].inverse_temperature;
    }

    /* Add the columns from `first` on. A mass is relative to a z that was seen early; columns
     * where the tile goes 8 nats above it have that z raised, and are added in a second pass. z
     * less that one is rounded once, which moves the log-normaliser by an ulp of it at most. */
    __device__ __forceinline__ void add_groups(const float *v, int first, float2 *masses) const
    {
        masses += first;
        int own = lane / 4 % (2 * groups);
        float2 *mass = &masses[sm90_column(lane, own)];
        bool waits = lane / 4 < 2 * groups;
        for (int pass = 0; pass < 2 && __any_sync(~0u, waits); pass++) {
            float part[2 * groups];
            if (pass == 1)
                waits = raise(v, first, mass, waits);
#pragma unroll
            for (int k = 0; k < 2 * groups; k++) {
                int column = sm90_column(lane, k), at = sm90_sum(k);
                float by = shared.draws[first + column].inverse_temperature * LOG2E;
                float from = -LOG2E * masses[column].x;
                part[k] = ptx_exp2(fmaf(v[at] * scale, by, from)) +
                          ptx_exp2(fmaf(v[at + 2] * scale, by, from));
            }
            sm90_join_lanes(part, lane, [](float a, float b) { return a + b; });
            if (waits && (pass == 1 || part[0] < 0x1p12f)) {
                mass->y += part[0];
                waits = false;
            }
        }
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
