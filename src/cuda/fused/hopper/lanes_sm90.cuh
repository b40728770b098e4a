/* SPDX-License-Identifier: Apache-2.0
 *
 * What the lanes of a warp hold of each eight columns of a product (layout: wgmma.cuh): lane
 * 4 g + q has columns 2 q and 2 q + 1 of tokens of its own, and shares them with seven other lanes.
 */
#ifndef GUMBEL_CUDA_LANES_SM90_CUH
#define GUMBEL_CUDA_LANES_SM90_CUH

#include "cuda/common/ptx.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

/* Groups of eight columns, of n columns in all, that are taken at once: up to four, with which each
 * lane ends with one column. */
template <int n> constexpr int sm90_groups = n / 8 < 4 ? n / 8 : 4;

/* Of thread `thread` of a team, the place of its first token in the tile; 64 on, in the other half,
 * is another one (fused_sm90.cu tells how the tensor map lays them down). */
__device__ __forceinline__ uint32_t sm90_place(int thread)
{
    int g = thread % 32 / 4;
    return 16 * (thread / 32) + 4 * (g >> 1) + 2 * (g & 1);
}

/* A lane's k-th column of such groups, and where among its sums the first of its two tokens is. */
__device__ __forceinline__ int sm90_column(int lane, int k)
{
    return 8 * (k / 2) + 2 * (lane & 3) + (k & 1);
}
__device__ __forceinline__ int sm90_sum(int k) { return 4 * (k / 2) + (k & 1); }

/* Of such groups' bounds, where that of a lane's k-th column lies (shared_sm90::bound_place()). */
template <int n> __device__ __forceinline__ int sm90_bound_place(int lane, int k)
{
    return n < 16 ? 2 * (lane & 3) + k : 16 * (k / 4) + 4 * (lane & 3) + k % 4;
}

/* The bits of those of all of its columns. */
template <int n>
__device__ __forceinline__ void sm90_load_bounds(const sm90_bound *from, int lane,
                                                 uint32_t (&bits)[2 * sm90_groups<n>])
{
    if constexpr (n < 16) {
        const uint2 two = *(const uint2 *)(from + sm90_bound_place<n>(lane, 0));
        bits[0] = two.x, bits[1] = two.y;
    } else {
#pragma unroll
        for (int k = 0; k < 2 * sm90_groups<n>; k += 4) {
            const uint4 four = *(const uint4 *)(from + sm90_bound_place<n>(lane, k));
            bits[k] = four.x, bits[k + 1] = four.y, bits[k + 2] = four.z, bits[k + 3] = four.w;
        }
    }
}

/* One round's sums, of those that follow each other in each half: by branches, of which a warp
 * takes few, since what is indexed lies in local memory, and selections would be one for each sum.
 */
template <int first, int end, int halves, int n, int values>
__device__ __forceinline__ void sm90_pick_of(const float (&sum)[halves][n], int round,
                                             float (&v)[values])
{
    constexpr int rounds = n / values, middle = (first + end) / 2;
    if constexpr (end - first > 1) {
        if (round < middle)
            sm90_pick_of<first, middle>(sum, round, v);
        else
            sm90_pick_of<middle, end>(sum, round, v);
    } else {
#pragma unroll
        for (int k = 0; k < values; k++)
            v[k] = ptx_keep_branch(sum[first / rounds][values * (first % rounds) + k]);
    }
}

template <int halves, int n, int values>
__device__ __forceinline__ void sm90_pick(const float (&sum)[halves][n], int round,
                                          float (&v)[values])
{
    sm90_pick_of<0, halves * n / values>(sum, round, v);
}

/* The at-th of some sums, as many as a power of two. */
template <int values> __device__ __forceinline__ float sm90_choose(const float (&v)[values], int at)
{
    if constexpr (values == 1)
        return v[0];
    else {
        float left[values / 2];
#pragma unroll
        for (int k = 0; k < values / 2; k++)
            left[k] = at & 1 ? v[2 * k + 1] : v[2 * k];
        return sm90_choose(left, at >> 1);
    }
}

/* Join `values` columns, 2 to 8, over the eight lanes that share them: lane 4 k + q ends with its
 * k-th column's value in value[0], k modulo `values`. With each step a lane keeps half of its
 * columns: seven exchanges for eight. By a whole warp. */
template <int values, class F>
__device__ __forceinline__ void sm90_join_lanes(float (&value)[values], int lane, F join)
{
    int count = values;
#pragma unroll
    for (int lanes = 16; lanes >= 4; lanes /= 2) {
        bool upper = lane & lanes, halves = count > lanes / 4;
        count = halves ? count / 2 : count;
#pragma unroll
        for (int k = 0; k < count; k++) {
            float keep = halves && upper ? value[k + count] : value[k];
            float pass = halves && !upper ? value[k + count] : value[k];
            value[k] = join(keep, __shfl_xor_sync(~0u, pass, lanes));
        }
    }
}

} // namespace

#endif
