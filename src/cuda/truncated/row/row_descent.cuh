/* SPDX-License-Identifier: Apache-2.0
 *
 * Descents over integer keys by one CTA (docs/maths.md, section 9). Their sums are integers, so the
 * order of summation does not matter. A source has each(f), by which the threads of the CTA call
 * f(id, y) once for each of its tokens. A source that is not a whole row (is_row) has `count`
 * tokens, and thread i has token i.
 */
#ifndef GUMBEL_CUDA_ROW_DESCENT_CUH
#define GUMBEL_CUDA_ROW_DESCENT_CUH

#include "maths/truncation.h"
#include "cuda/policy/cuda_policy.h"
#include "cuda/common/draw.cuh"
#include "cuda/truncated/row/truncated_row.cuh"

namespace
{

constexpr int kBinBits = 10, kBins = 1 << kBinBits;
/* Up to this many candidates are compared pairwise instead of sorted into bins. */
constexpr int kCompared = 256;
static_assert(kCompared <= kThreads && kCompared <= kBins, "a thread and a bin for each");
constexpr uint64_t kLowHalf = (UINT64_C(1) << GUMBEL_MASS_HALF_BITS) - 1;

/* A 128-bit sum of masses in two halves, or a count in the low half. */
struct wide_sum {
    uint64_t high, low;

    __device__ __forceinline__ gumbel_wide value() const
    {
        return ((gumbel_wide)high << GUMBEL_MASS_HALF_BITS) + low;
    }

    __device__ __forceinline__ void add(uint64_t own)
    {
        high += own >> GUMBEL_MASS_HALF_BITS;
        low += own & kLowHalf;
    }
};

__device__ __forceinline__ wide_sum operator+(wide_sum a, wide_sum b)
{
    return {a.high + b.high, a.low + b.low};
}

/* The sum over a warp, for all lanes. */
__device__ __forceinline__ uint64_t sum_of_warp(uint64_t own)
{
    constexpr uint32_t digits = 27, mask = (1u << digits) - 1;
    uint64_t low = __reduce_add_sync(~0u, (uint32_t)own & mask);
    uint64_t middle = __reduce_add_sync(~0u, (uint32_t)(own >> digits) & mask);
    uint64_t high = __reduce_add_sync(~0u, (uint32_t)(own >> 2 * digits));
    return low + (middle << digits) + (high << 2 * digits);
}
__device__ __forceinline__ wide_sum sum_of_warp(wide_sum own)
{
    return {sum_of_warp(own.high), sum_of_warp(own.low)};
}

/* Shared memory of a descent. Bins are interleaved: a lane of the warp that walks down sums 32
 * consecutive bins, and the warp reads without bank conflicts. */
struct truncated_scratch {
    unsigned long long high[kBins], low[kBins];
    unsigned long long slots[kWarps];
    wide_sum above;
    int bin;
    uint32_t key;
};

__device__ __forceinline__ int index_of_bin(int bin) { return bin % 32 * 32 + bin / 32; }

/* ---------------------------------------------------------------------------- reductions ---- */

/* Reduces one value per thread by join(), for all threads. T has 4 or 8 bytes. */
template <class T, class F>
__device__ __forceinline__ T reduce_cta(T own, truncated_scratch &x, F join)
{
    T *slots = (T *)x.slots;
    static_assert(sizeof(T) <= sizeof x.slots[0], "a slot holds one");
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        own = join(own, __shfl_xor_sync(~0u, own, half));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        slots[threadIdx.x / 32] = own;
    __syncthreads();
    own = slots[0];
    for (int w = 1; w < kWarps; w++)
        own = join(own, slots[w]);
    return own;
}

__device__ __forceinline__ uint32_t largest_of_cta(uint32_t own, truncated_scratch &x)
{
    return reduce_cta(own, x, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}

__device__ __forceinline__ uint64_t sum_of_cta(uint64_t own, truncated_scratch &x)
{
    return reduce_cta((unsigned long long)own, x,
                      [](unsigned long long a, unsigned long long b) { return a + b; });
}

/* ------------------------------------------------------------------------------- descent ---- */

/* Result of a descent: the largest key such that the weight at or above it reaches what is needed,
 * and the weight above that key. */
struct descent_result {
    bool reached;
    uint32_t key;
    gumbel_wide above;
};

/* The sums over all higher lanes. */
__device__ __forceinline__ wide_sum sum_higher_lanes(wide_sum own, int lane)
{
    wide_sum sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        uint64_t high = __shfl_down_sync(~0u, (unsigned long long)sum.high, step);
        uint64_t low = __shfl_down_sync(~0u, (unsigned long long)sum.low, step);
        sum.high += lane + step < 32 ? high : 0;
        sum.low += lane + step < 32 ? low : 0;
    }
    return {sum.high - own.high, sum.low - own.low};
}

/* Finds the bin in which the weight reaches `needed`, by one warp: first the lane, then its bin. */
__device__ __forceinline__ void walk_down_bins(truncated_scratch &x, gumbel_wide needed, int lane)
{
    wide_sum own = {0, 0}, over = x.above;
    for (int i = 0; i < 32; i++) {
        own.high += x.high[i * 32 + lane];
        own.low += x.low[i * 32 + lane];
    }
    __syncwarp(); /* all lanes have read `above` before one replaces it */
    int owner = 0;
    for (int level = 0; level < 2; level++) {
        wide_sum higher = sum_higher_lanes(own, lane);
        higher.high += over.high;
        higher.low += over.low;
        bool ends = higher.value() < needed && higher.value() + own.value() >= needed;
        uint32_t found = __ballot_sync(~0u, ends);
        if (found == 0) {
            x.bin = -1;
            return;
        }
        int place = __ffs(found) - 1;
        if (level == 1 && lane == place) {
            x.bin = owner * 32 + place;
            x.above = higher;
        }
        over.high = __shfl_sync(~0u, (unsigned long long)higher.high, place);
        over.low = __shfl_sync(~0u, (unsigned long long)higher.low, place);
        owner = place;
        own = {x.high[lane * 32 + owner], x.low[lane * 32 + owner]};
    }
}

/* Descent over at most kCompared candidates, one per thread: each thread sums the weight above its
 * own key. */
template <class Source, class Give>
__device__ descent_result descend_by_comparing(const Source &source, truncated_scratch &x,
                                               uint32_t low, gumbel_wide needed, Give visit)
{
    uint32_t key = 0;
    uint64_t own = 0;
    source.each([&](int32_t id, float y) {
        visit(id, y, [&](uint32_t offered, uint64_t of_token) {
            key = offered;
            own = offered < low ? 0 : of_token;
        });
    });
    __syncthreads();
    if ((int)threadIdx.x < source.count) {
        x.high[threadIdx.x] = key;
        x.low[threadIdx.x] = own;
    }
    if (threadIdx.x == 0)
        x.bin = -1;
    __syncthreads();
    wide_sum above = {0, 0}, at = {0, 0};
    bool first = true;
    for (int i = 0; own && i < source.count; i++) {
        uint32_t other = (uint32_t)x.high[i];
        if (other > key)
            above.add(x.low[i]);
        else if (other == key)
            at.add(x.low[i]);
        first &= other != key || i >= (int)threadIdx.x || x.low[i] == 0;
    }
    if (own && first && above.value() < needed && above.value() + at.value() >= needed) {
        x.bin = 0;
        x.key = key;
        x.above = above;
    }
    __syncthreads();
    return {x.bin == 0, x.key, x.above.value()};
}

/* Descends over the keys low .. high until bins have at most 2^rough keys, and returns the first
 * key of the last bin. visit(id, y, offer) calls offer(key, weight) for a token that counts.
 * Weights are masses, or ones, whose sums stay below 2^32 and are much faster. Called by all
 * threads, which all receive the result. */
template <bool by_mass, class Source, class Give>
__device__ descent_result descend_keys(const Source &source, truncated_scratch &x, uint32_t low,
                                       uint32_t high, gumbel_wide needed, Give visit, int rough = 0)
{
    if constexpr (!Source::is_row)
        if (source.count <= kCompared)
            return descend_by_comparing(source, x, low, needed, visit);
    __syncthreads();
    if (threadIdx.x == 0)
        x.above = {0, 0};
    while (low <= high) {
        int bits = low == high ? 0 : 32 - __clz(high - low);
        int shift = bits > kBinBits ? bits - kBinBits : 0;
        __syncthreads();
        for (int i = threadIdx.x; i < kBins; i += kThreads)
            x.high[i] = x.low[i] = 0;
        __syncthreads();
        source.each([&](int32_t id, float y) {
            visit(id, y, [&](uint32_t key, uint64_t own) {
                if (key < low || key > high)
                    return;
                int place = index_of_bin((int)((key - low) >> shift));
                if (by_mass) {
                    atomicAdd(&x.low[place], own & kLowHalf);
                    atomicAdd(&x.high[place], own >> GUMBEL_MASS_HALF_BITS);
                } else {
                    atomicAdd((uint32_t *)&x.low[place], 1);
                }
            });
        });
        __syncthreads();
        if (threadIdx.x < 32)
            walk_down_bins(x, needed, threadIdx.x);
        __syncthreads();
        if (x.bin < 0)
            break;
        low += (uint32_t)x.bin << shift;
        high = min(high, low + ((1u << shift) - 1));
        if (shift <= rough)
            return {true, low, x.above.value()};
    }
    return {false, 0, 0};
}

} // namespace

#endif
