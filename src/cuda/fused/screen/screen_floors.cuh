/* SPDX-License-Identifier: Apache-2.0
 *
 * The floors of rows that are cut: what as many lower ends of logits reach as first tokens matter.
 * A CTA tells of each tile its peak, the largest lower end of it; peaks are of tokens that differ,
 * so that what k of them reach, k tokens do. Of each row a warp of one CTA looks, all the while, at
 * the peaks that are there (row_bound.cuh), and raises its floor.
 *
 * All tokens of a CTA's first tile would pass. So its team waits, behind the peaks of that tile,
 * for the first floor, while the other one multiplies: that floor goes by the first wave of tiles.
 * Nobody waits for ever: what comes too late costs the call its screen, never a token.
 */
#ifndef GUMBEL_CUDA_SCREEN_FLOORS_CUH
#define GUMBEL_CUDA_SCREEN_FLOORS_CUH

#include "cuda/fused/screen/screen_shared.cuh"

namespace
{

/* One in so many of the first wave's tiles may be late: the first floor goes by the others. */
constexpr int kWaveLate = 8;
/* Looks that the first floor waits for these, and between looks nanoseconds; behind the first
 * floor, for each 128 columns of a tile, of which that is a fifth of the time. */
constexpr int kWaveLooks = 200, kWaveNap = 300, kDepthNap = 200;
/* Looks of a team at its floors, at most, and nanoseconds between them. */
constexpr int kFloorLooks = 1000, kFloorNap = 300;

/* What is told of a row beside its floor; the first kernel of the call has cleared it. */
__device__ __forceinline__ uint64_t *cut_word(const cuda_screen_params &s, int row, int word)
{
    return &s.call.row_thresholds[CUDA_THRESHOLD_WORDS * row + word];
}

/* The tokens that are listed of a row, and those that are scored. */
__device__ __forceinline__ unsigned int *listed_of_row(const cuda_screen_params &s, int row)
{
    return (unsigned int *)cut_word(s, row, CUDA_TRUNCATED_COUNTS);
}
__device__ __forceinline__ unsigned int *scored_of_row(const cuda_screen_params &s, int row)
{
    return listed_of_row(s, row) + 1;
}

/* Tokens that are listed of a row at most. */
__device__ __forceinline__ int list_most_of_row(const cuda_screen_params &s)
{
    const int list_most = min(max(s.header->list_most, 1), GUMBEL_SCREEN_LIST_MOST);
    return (int)min((int64_t)CUDA_SCREEN_INTERVALS(list_most), s.ends_stride);
}

/* Tell of row i what its tokens reach that were weighed of a tile. */
template <int n>
__device__ __forceinline__ void give_peak(const cuda_screen_params &s, const screen_side<n> &side,
                                          int i, int tile)
{
    *(volatile float *)&s.peaks[(int64_t)i * s.call.tiles + tile] = side.reached(i);
}

/* By a warp: wait until the rows of its lanes that draw have floors. */
template <int n>
__device__ __forceinline__ void wait_for_floors(const cuda_screen_params &s, screen_side<n> &side,
                                                int i, bool draws)
{
#pragma unroll 1
    for (int looks = 0; looks < kFloorLooks; looks++) {
        bool lacks = false;
        if (draws) {
            take_floor(s, side, i, load_threshold(floor_of_row(s, i)));
            lacks = side.thresholds[i] == -INFINITY;
        }
        if (!__any_sync(~0u, lacks))
            return;
        __nanosleep(kFloorNap);
    }
}

/* Let those that raise floors end, by the threads that serve. */
template <int n> __device__ __forceinline__ void end_floors(screen_side<n> &side)
{
    if (threadIdx.x == SM90_DRAW_THREADS)
        atomicOr(&side.ends, 1u);
}

/* Raise the floors of this CTA's rows until its last tile is marked; by a warp. */
template <int n>
__device__ __forceinline__ void screen_raise_floors(const cuda_screen_params &s,
                                                    screen_side<n> &side)
{
    const int all = min(s.call.tiles, 32 * kPeaksOfLane), first = min((int)gridDim.x, all);
    const int wave = first - first / kWaveLate;
    int known = 0; /* peaks of this CTA's row, where it has one, when its floor was raised */
    bool any = false;
#pragma unroll 1
    for (int looks = 0; !__any_sync(~0u, threadIdx.x % 32 == 0 && atomicOr(&side.ends, 0u));
         looks++) {
#pragma unroll 1
        for (int row = blockIdx.x; row < s.draws; row += gridDim.x) {
            if (!side.draws_row(row))
                continue;
            const row_bound wanted = {side.ranks[row], 0, 0.0f};
            const int needed = looks < kWaveLooks ? max(wave, min(wanted.rank, first)) - 1 : 0;
            /* The first one, at nothing, brings the code. */
            const peaks_found found =
                look_at_peaks(s.peaks + (int64_t)row * s.call.tiles, looks > 0 ? all : 0, wanted,
                              max(known, needed));
            if (found.present <= max(known, needed))
                continue;
            /* Of a row that is masked all but wholly there is nothing to wait for. */
            const float bound = fmaxf(bound_below(found.bound), -FLT_MAX);
            any = true;
            if (s.draws <= (int)gridDim.x)
                known = found.present;
            if (threadIdx.x % 32 == 0)
                atomicMax((unsigned long long *)floor_of_row(s, row),
                          (unsigned long long)s.call.tag << THRESHOLD_BITS | pack_threshold(bound));
        }
        __nanosleep(any ? kDepthNap * s.depths : kWaveNap);
    }
}

} // namespace

#endif
