/* SPDX-License-Identifier: Apache-2.0
 *
 * The cut of a row by one CTA (docs/maths.md, section 8): descents over integer keys, whose sums
 * are integers, so that no order of summation shows. A source is anything whose each(f) has the
 * threads of the CTA call f(id, y) for every token that it holds, once.
 */
#ifndef GUMBEL_CUDA_REQUEST_CUT_CUH
#define GUMBEL_CUDA_REQUEST_CUT_CUH

#include "core/truncation.h"
#include "cuda/cuda_policy.h"
#include "cuda/draw.cuh"
#include "cuda/request_row.cuh"

namespace
{

constexpr int kBinBits = 10, kBins = 1 << kBinBits;
constexpr uint64_t kHalf = (UINT64_C(1) << GUMBEL_MASS_HALF_BITS) - 1;

/* A sum of masses in two halves, or of ones in the low half. */
struct weight {
    uint64_t high, low;

    __device__ __forceinline__ gumbel_wide wide() const
    {
        return ((gumbel_wide)high << GUMBEL_MASS_HALF_BITS) + low;
    }

    __device__ __forceinline__ void add(uint64_t own)
    {
        high += own >> GUMBEL_MASS_HALF_BITS;
        low += own & kHalf;
    }
};

/* What a CTA finds a cut with, in shared memory. Bins lie so that a lane of the warp that walks
 * down has 32 neighbours, and all lanes read side by side. */
struct request_scratch {
    unsigned long long high[kBins], low[kBins];
    unsigned long long slots[kWarps];
    weight above;
    int bin;
};

__device__ __forceinline__ int place_of_bin(int bin) { return bin % 32 * 32 + bin / 32; }

/* ---------------------------------------------------------------------------- reductions ---- */

/* join() over all threads, for all of them. T has 4 or 8 bytes. */
template <class T, class F> __device__ __forceinline__ T over_cta(T own, request_scratch &x, F join)
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

__device__ __forceinline__ uint32_t largest_of_cta(uint32_t own, request_scratch &x)
{
    return over_cta(own, x, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}

__device__ __forceinline__ uint64_t sum_of_cta(uint64_t own, request_scratch &x)
{
    return over_cta((unsigned long long)own, x,
                    [](unsigned long long a, unsigned long long b) { return a + b; });
}

/* ------------------------------------------------------------------------------- descent ---- */

/* Where a descent ended: the largest key at which the weight of what is not below reaches what was
 * needed; and the weight above it. */
struct landing {
    bool reached;
    uint32_t key;
    gumbel_wide above;
};

/* The sums of all higher lanes. */
__device__ __forceinline__ weight sum_of_higher(weight own, int lane)
{
    weight sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        uint64_t high = __shfl_down_sync(~0u, (unsigned long long)sum.high, step);
        uint64_t low = __shfl_down_sync(~0u, (unsigned long long)sum.low, step);
        sum.high += lane + step < 32 ? high : 0;
        sum.low += lane + step < 32 ? low : 0;
    }
    return {sum.high - own.high, sum.low - own.low};
}

/* Walk down the bins, by one warp: the first lanes, then the bins of the lane where it ends. */
__device__ __forceinline__ void walk_down(request_scratch &x, gumbel_wide needed, int lane)
{
    weight own = {0, 0}, over = x.above;
    for (int i = 0; i < 32; i++) {
        own.high += x.high[i * 32 + lane];
        own.low += x.low[i * 32 + lane];
    }
    int owner = 0;
    for (int level = 0; level < 2; level++) {
        weight higher = sum_of_higher(own, lane);
        higher.high += over.high;
        higher.low += over.low;
        bool ends = higher.wide() < needed && higher.wide() + own.wide() >= needed;
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

/* Descend over the keys low .. high, down to bins of 2^rough keys, of which the lowest is given:
 * give(id, y, offer) calls offer(key, weight) for a token that counts. Weights are masses or ones,
 * whose sums stay below 2^32 and are far faster. By all threads, for all of them. */
template <bool by_mass, class Source, class Give>
__device__ landing descend(const Source &source, request_scratch &x, uint32_t low, uint32_t high,
                           gumbel_wide needed, Give give, int rough = 0)
{
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
            give(id, y, [&](uint32_t key, uint64_t own) {
                if (key < low || key > high)
                    return;
                int place = place_of_bin((int)((key - low) >> shift));
                if (by_mass) {
                    atomicAdd(&x.low[place], own & kHalf);
                    atomicAdd(&x.high[place], own >> GUMBEL_MASS_HALF_BITS);
                } else {
                    atomicAdd((uint32_t *)&x.low[place], 1);
                }
            });
        });
        __syncthreads();
        if (threadIdx.x < 32)
            walk_down(x, needed, threadIdx.x);
        __syncthreads();
        if (x.bin < 0)
            break;
        low += (uint32_t)x.bin << shift;
        high = min(high, low + ((1u << shift) - 1));
        if (shift <= rough)
            return {true, low, x.above.wide()};
    }
    return {false, 0, 0};
}

/* ----------------------------------------------------------------------------------- cut ---- */

/* Which tokens stay: those above the bound, and of its equals those up to last_id. */
struct request_cut {
    float bound;
    int32_t last_id;

    __device__ __forceinline__ bool keeps(int32_t id, float value) const
    {
        return value > bound || (value == bound && id <= last_id);
    }
};

/* How the rules look at a token: its value, z or y; NaN for one that cannot be drawn. */
struct request_values {
    float inverse_temperature;
    bool before;

    __device__ __forceinline__ float z(float y) const { return y * inverse_temperature; }

    __device__ __forceinline__ float of(float y) const
    {
        float own = z(y);
        return own > -INFINITY ? (before ? y : own) : NAN;
    }
};

/* The y of each thread's largest value. */
struct peaks_source {
    static constexpr bool is_row = false;
    const float *peaks; /* [kThreads] */

    template <class F> __device__ __forceinline__ void each(F f) const
    {
        f((int32_t)threadIdx.x, peaks[threadIdx.x]);
    }
};

template <class Source> struct cut_finder {
    const Source &source;
    request_scratch &x;
    request_values values;
    float largest; /* value */
    peaks_source peaks;

    /* The n-th largest value. n threads reach the n-th largest of their largest values, so n tokens
     * do: that leaves few to look at. */
    __device__ landing nth(uint64_t n, float floor) const
    {
        landing least = {false, 0, 0};
        if (Source::is_row && n <= kThreads)
            least = nth_of(peaks, n, floor);
        return nth_of(source, n, least.reached ? gumbel_of_key(least.key) : floor);
    }

    template <class Of>
    __device__ __forceinline__ landing nth_of(const Of &of, uint64_t n, float floor,
                                              int rough = 0) const
    {
        return descend<false>(
            of, x, gumbel_key(floor), gumbel_key(largest), n,
            [&](int32_t, float y, auto offer) {
                float v = values.of(y);
                if (!isnan(v))
                    offer(gumbel_key(v), 1);
            },
            rough);
    }

    __device__ __forceinline__ uint64_t mass_of(float v) const
    {
        return gumbel_token_mass(gumbel_exp(v - largest));
    }

    /* top_p of what `from` keeps. */
    __device__ gumbel_cut cut_top_p(float top_p, bool exact, gumbel_cut from) const
    {
        weight sum = {0, 0};
        uint64_t count = 0, equal = 0;
        source.each([&](int32_t, float y) {
            float v = values.of(y);
            equal += v == from.bound;
            if (v > from.bound) {
                sum.add(mass_of(v));
                count++;
            }
        });
        equal = min(sum_of_cta(equal, x), (uint64_t)from.tied);
        count = sum_of_cta(count, x) + equal;
        sum.high = sum_of_cta(sum.high, x);
        sum.low = sum_of_cta(sum.low, x);
        gumbel_wide mass = sum.wide();
        if (equal)
            mass += (gumbel_wide)equal * mass_of(from.bound);
        gumbel_wide needed = gumbel_nucleus(top_p, mass);
        /* What has no mass ends no nucleus, nor do those whose whole mass may go. */
        float floor = gumbel_nucleus_floor(largest, mass - needed, (int64_t)count);
        floor = fmaxf(fmaxf(floor, largest - GUMBEL_MASS_REACH), from.bound);
        landing end = descend<true>(source, x, gumbel_key(floor), gumbel_key(largest), needed,
                                    [&](int32_t, float y, auto offer) {
                                        float v = values.of(y);
                                        if (v >= floor)
                                            offer(gumbel_key(v), mass_of(v));
                                    });
        gumbel_cut own = {gumbel_of_key(end.key), GUMBEL_TIES_STAY};
        if (exact)
            own.tied = gumbel_ties_needed(needed, end.above, mass_of(own.bound));
        return own;
    }

    /* The last id that stays, where only the first `tied` equals of the bound do. */
    __device__ int32_t last_of_ties(gumbel_cut cut) const
    {
        if (cut.tied == GUMBEL_TIES_STAY)
            return INT32_MAX;
        landing last = descend<false>(source, x, ~(uint32_t)INT32_MAX, ~0u, (uint64_t)cut.tied,
                                      [&](int32_t id, float y, auto offer) {
                                          if (values.of(y) == cut.bound)
                                              offer(~(uint32_t)id, 1);
                                      });
        return last.reached ? (int32_t)~last.key : INT32_MAX;
    }

    __device__ request_cut find(const gumbel_rules &r) const
    {
        gumbel_cut cut = {gumbel_min_p_bound(largest, r.min_p), GUMBEL_TIES_STAY};
        if (r.top_k > 0) {
            landing k = nth((uint64_t)r.top_k, cut.bound);
            if (k.reached)
                cut = {gumbel_of_key(k.key),
                       r.exact ? r.top_k - (int64_t)k.above : GUMBEL_TIES_STAY};
        }
        if (r.top_p < 1.0f) {
            gumbel_cut all = {-FLT_MAX, GUMBEL_TIES_STAY};
            cut = gumbel_stricter(cut, cut_top_p(r.top_p, r.exact, r.joint ? all : cut));
        }
        return {cut.bound, last_of_ties(cut)};
    }
};

} // namespace

#endif
