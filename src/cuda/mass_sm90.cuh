/* SPDX-License-Identifier: Apache-2.0
 *
 * The masses of a tile's columns (docs/maths.md, section 5), from two warpgroups' accumulators.
 * Each warp keeps the mass of its own sixteen tokens of every tile, in an order that does not
 * depend on the batch.
 */
#ifndef GUMBEL_CUDA_MASS_SM90_CUH
#define GUMBEL_CUDA_MASS_SM90_CUH

#include "cuda/draw.cuh"
#include "cuda/shared_sm90.cuh"

namespace
{

template <int n> class tile_mass
{
    static constexpr int groups = n / 8 < 4 ? n / 8 : 4; /* of 8 columns, summed at once */

    const shared_sm90<n> &shared;
    int columns, lane;
    float scale;

  public:
    /* `scale` turns a logit to z, before the temperature. */
    __device__ tile_mass(const shared_sm90<n> &memory, int batch, float scale_of_z)
        : shared(memory), columns(batch), lane(threadIdx.x % 32), scale(scale_of_z)
    {
    }

    /* Add the prepared tile in `sum`. */
    __device__ __forceinline__ void add(const float (&sum)[n / 2]) const
    {
#pragma unroll
        for (int j = 0; j < n / 8; j += groups)
            if (8 * j < columns)
                add_groups(sum + 4 * j, 8 * j);
    }

  private:
    __device__ __forceinline__ float z_of(float sum, int column) const
    {
        return (sum * scale) * shared.draws[column].inverse_temperature;
    }

    /* Add the columns from `first` on. A mass is relative to a z that the warp saw early; where the
     * tile goes 8 nats above it, that z is raised first. */
    __device__ __forceinline__ void add_groups(const float *v, int first) const
    {
        float2 *masses = shared.masses + threadIdx.x / 32 * n + first;
        float part[2 * groups];
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            int column = 8 * (k / 2) + 2 * (lane & 3) + (k & 1), at = 4 * (k / 2) + (k & 1);
            float from = masses[column].x;
            part[k] = ptx_exp2((z_of(v[at], first + column) - from) * LOG2E) +
                      ptx_exp2((z_of(v[at + 2], first + column) - from) * LOG2E);
        }
        int own = sum_columns(part);
        float2 *mass = &masses[8 * (own / 2) + 2 * (lane & 3) + (own & 1)];
        bool owner = lane / 4 < 2 * groups, low = !(part[0] < 0x1p12f);
        if (owner && !low)
            mass->y += part[0];
        uint32_t raise = __ballot_sync(~0u, owner && low);
        if (raise == 0)
            return;
#pragma unroll
        for (int k = 0; k < 2 * groups; k++)
            raise_mass(first + 8 * (k / 2) + 2 * (lane & 3) + (k & 1), v[4 * (k / 2) + (k & 1)],
                       v[4 * (k / 2) + (k & 1) + 2], raise >> (4 * k + (lane & 3)) & 1);
    }

    /* Sum columns over the eight lanes that share them. Lane 4 k + q ends with the sum of its k-th
     * column in part[0], and returns k: with each step a lane keeps half of its columns. */
    __device__ __forceinline__ int sum_columns(float (&part)[2 * groups]) const
    {
        int count = 2 * groups, own = 0;
#pragma unroll
        for (int lanes = 16; lanes >= 4; lanes /= 2) {
            bool upper = lane & lanes;
            if (count > lanes / 4) {
                count /= 2;
                own += upper ? count : 0;
#pragma unroll
                for (int k = 0; k < count; k++) {
                    float pass = upper ? part[k] : part[k + count];
                    part[k] =
                        (upper ? part[k + count] : part[k]) + __shfl_xor_sync(~0u, pass, lanes);
                }
            } else {
#pragma unroll
                for (int k = 0; k < count; k++)
                    part[k] += __shfl_xor_sync(~0u, part[k], lanes);
            }
        }
        return own;
    }

    /* Add two tokens a lane to a column's mass, relative to the largest z so far; if `wanted`. */
    __device__ __forceinline__ void raise_mass(int column, float a, float b, bool wanted) const
    {
        float2 *mass = shared.masses + threadIdx.x / 32 * n + column;
        float za = z_of(a, column), zb = z_of(b, column), largest = fmaxf(za, zb);
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
        float2 m = *mass;
        float top = fmaxf(m.x, largest), from = top > -INFINITY ? top : 0.0f;
        float part = ptx_exp2((za - from) * LOG2E) + ptx_exp2((zb - from) * LOG2E);
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
            part += __shfl_xor_sync(~0u, part, lanes);
        __syncwarp();
        if (lane < 4 && wanted)
            *mass = {top, m.y * ptx_exp2((m.x - from) * LOG2E) + part};
        __syncwarp();
    }
};

} // namespace

#endif
