/* SPDX-License-Identifier: Apache-2.0
 *
 * Thresholds of truncated rows. A row's threshold is a value that the lower bounds of at least k
 * logits reach, where k is the number of leading tokens that can affect the outputs; with min_p it
 * is at most the largest lower bound less the distance of min_p. A CTA stores the largest lower
 * bound of each tile. Maxima of different tiles belong to different tokens, so the k-th largest
 * maximum is such a value. In a CTA's first tile tokens that penalties may lower are not counted;
 * later the few candidates have exact penalties. One warp for each row repeatedly reads the maxima
 * stored so far (row_bound.cuh), and raises the row's shared threshold.
 *
 * Without a threshold all tokens of a CTA's first tile would pass. The consumer that has this tile
 * therefore stores its maxima and waits for the first shared threshold, which the first wave of
 * tiles determines, while the other consumer multiplies. The wait is limited: if the threshold is
 * late, the call falls back to the full pass, and no token changes.
 */
#ifndef GUMBEL_CUDA_SCREEN_THRESHOLDS_CUH
#define GUMBEL_CUDA_SCREEN_THRESHOLDS_CUH

#include "cuda/fused/screen/screen_shared.cuh"

namespace
{

/* One in kWaveLate tiles of the first wave may be late: the first threshold uses the others. */
constexpr int kWaveLate = 8;
/* Polls that the first threshold waits for these tiles, and nanoseconds between polls; later,
 * nanoseconds for each 128 columns of a tile: a fifth of the tile's time. */
constexpr int kWavePolls = 200, kWaveBackoff = 300, kStageBackoff = 200;
/* The largest number of polls of a consumer for its thresholds, and nanoseconds between them. */
constexpr int kThresholdPolls = 1000, kThresholdBackoff = 300;

/* A word of a row beside its shared threshold; the first kernel of the call has cleared it. */
__device__ __forceinline__ uint64_t *truncation_word(const cuda_screen_params &s, int row, int word)
{
    return &s.call.row_thresholds[CUDA_THRESHOLD_WORDS * row + word];
}

/* Counters of a row: tokens listed, and tokens scored. */
__device__ __forceinline__ unsigned int *listed_of_row(const cuda_screen_params &s, int row)
{
    return (unsigned int *)truncation_word(s, row, CUDA_TRUNCATED_COUNTS);
}
__device__ __forceinline__ unsigned int *scored_of_row(const cuda_screen_params &s, int row)
{
    return listed_of_row(s, row) + 1;
}

/* The largest number of tokens listed of a row. */
__device__ __forceinline__ int list_capacity(const cuda_screen_params &s)
{
    const int list_max = min(max(s.header->list_max, 1), GUMBEL_SCREEN_LIST_MAX);
    return (int)min((int64_t)CUDA_SCREEN_INTERVALS(list_max), s.listed_stride);
}

/* Stores the largest lower bound among row i's candidates of a tile. */
template <int n>
__device__ __forceinline__ void store_tile_max(const cuda_screen_params &s,
                                               const screen_shared<n> &shared, int i, int tile)
{
    *(volatile float *)&s.maxima[(int64_t)i * s.call.tiles + tile] = shared.best_bound(i);
}

/* Waits until the rows of the warp's lanes that draw have thresholds; by a warp. */
template <int n>
__device__ __forceinline__ void wait_for_thresholds(const cuda_screen_params &s,
                                                    screen_shared<n> &shared, int i, bool draws)
{
#pragma unroll 1
    for (int polls = 0; polls < kThresholdPolls; polls++) {
        bool missing = false;
        if (draws) {
            raise_to_shared(s, shared, i, load_threshold(shared_threshold(s, i)));
            missing = shared.thresholds[i] == -INFINITY;
        }
        if (!__any_sync(~0u, missing))
            return;
        __nanosleep(kThresholdBackoff);
    }
}

/* Lets screen_raise_thresholds() return; by the service threads. */
template <int n> __device__ __forceinline__ void stop_threshold_warps(screen_shared<n> &shared)
{
    if (threadIdx.x == SM90_DRAW_THREADS)
        atomicOr(&shared.stop_raising, 1u);
}

/* Raises the shared thresholds of this CTA's rows until filters of its last tile are set; by a
 * warp. */
template <int n>
__device__ __forceinline__ void screen_raise_thresholds(const cuda_screen_params &s,
                                                        screen_shared<n> &shared)
{
    const int all = min(s.call.tiles, 32 * kMaximaPerLane), first = min((int)gridDim.x, all);
    const int wave = first - first / kWaveLate;
    int known = 0; /* maxima stored when the threshold of the CTA's only row was raised */
    bool any = false;
#pragma unroll 1
    for (int polls = 0;
         !__any_sync(~0u, threadIdx.x % 32 == 0 && atomicOr(&shared.stop_raising, 0u)); polls++) {
#pragma unroll 1
        for (int row = blockIdx.x; row < s.draws; row += gridDim.x) {
            if (!shared.draws_row(row))
                continue;
            const row_bound wanted = shared.wanted[row];
            const int needed = polls < kWavePolls ? max(wave, min(wanted.rank, first)) - 1 : 0;
            /* The first poll reads nothing; it loads the code. */
            const bound_found found =
                find_row_bound(s.maxima + (int64_t)row * s.call.tiles, polls > 0 ? all : 0, wanted,
                               max(known, needed));
            if (found.present <= max(known, needed))
                continue;
            /* A row whose mask allows hardly any token has no bound: do not wait for one. */
            const float bound = fmaxf(bound_below(found.bound), -FLT_MAX);
            any = true;
            if (s.draws <= (int)gridDim.x)
                known = found.present;
            if (threadIdx.x % 32 == 0)
                atomicMax((unsigned long long *)shared_threshold(s, row),
                          (unsigned long long)s.call.tag << THRESHOLD_BITS | pack_threshold(bound));
        }
        __nanosleep(any ? kStageBackoff * s.depths : kWaveBackoff);
    }
}

} // namespace

#endif
