/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout of accumulators in a warp, for each eight columns of a product (wgmma.cuh): lane 4 g + q
 * holds columns 2 q and 2 q + 1 of its own tokens; seven other lanes hold other tokens of these
 * columns.
 */
#ifndef GUMBEL_CUDA_LANES_SM90_CUH
#define GUMBEL_CUDA_LANES_SM90_CUH

#include "cuda/common/ptx.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

/* Groups of eight columns that are processed at once, of n columns in all: up to four, so that
 * after sm90_join_lanes() each lane has one column. */
template <int n> constexpr int sm90_groups = n / 8 < 4 ? n / 8 : 4;

/* Index in the tile of the first token of thread `thread` of a consumer. The thread's token in the
 * other half of the tile has that index plus 64 (tensor map: fused_sm90.cuh). */
__device__ __forceinline__ uint32_t sm90_place(int thread)
{
    int g = thread % 32 / 4;
    return 16 * (thread / 32) + 4 * (g >> 1) + 2 * (g & 1);
}

/* A lane's k-th column of these groups, and the index among its sums of the first of its two
 * tokens. */
__device__ __forceinline__ int sm90_column(int lane, int k)
{
    return 8 * (k / 2) + 2 * (lane & 3) + (k & 1);
}
__device__ __forceinline__ int sm90_sum_index(int k) { return 4 * (k / 2) + (k & 1); }

/* Index of the bound of a lane's k-th column (shared_sm90::bound_place()). */
template <int n> __device__ __forceinline__ int sm90_bound_place(int lane, int k)
{
    return n < 16 ? 2 * (lane & 3) + k : 16 * (k / 4) + 4 * (lane & 3) + k % 4;
}

/* Loads the bounds of all columns of a lane, as bits. */
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

/* Copies one round's sums to `v`; a round is `values` consecutive sums of a half. The code
 * branches, as an index would move the sums to local memory, and selections would take one
 * instruction a sum. */
template <int first, int end, int halves, int n, int values>
__device__ __forceinline__ void sm90_pick_among(const float (&sum)[halves][n], int round,
                                                float (&v)[values])
{
    constexpr int rounds = n / values, middle = (first + end) / 2;
    if constexpr (end - first > 1) {
        if (round < middle)
            sm90_pick_among<first, middle>(sum, round, v);
        else
            sm90_pick_among<middle, end>(sum, round, v);
    } else {
#pragma unroll
        for (int k = 0; k < values; k++)
            v[k] = ptx_keep_branch(sum[first / rounds][values * (first % rounds) + k]);
    }
}

template <int halves, int n, int values>
__device__ __forceinline__ void sm90_pick_round(const float (&sum)[halves][n], int round,
                                                float (&v)[values])
{
    sm90_pick_among<0, halves * n / values>(sum, round, v);
}

/* Returns v[at]; `values` is a power of two. */
template <int values>
__device__ __forceinline__ float sm90_choose_sum(const float (&v)[values], int at)
{
    if constexpr (values == 1)
        return v[0];
    else {
        float half_of[values / 2];
#pragma unroll
        for (int k = 0; k < values / 2; k++)
            half_of[k] = at & 1 ? v[2 * k + 1] : v[2 * k];
        return sm90_choose_sum(half_of, at >> 1);
    }
}

/* Reduces `values` columns, 2 to 8, over the eight lanes that hold them: lane 4 k + q ends with the
 * result of its column k modulo `values` in value[0]. In each step a lane keeps half of its
 * columns: seven shuffles for eight columns. For a whole warp. */
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
