/* SPDX-License-Identifier: Apache-2.0
 *
 * Descents by a cluster (docs/maths.md, section 9). Counts of tokens in bins of equal width give
 * the range of keys that contains the cutoff. A descent over the keys of that range, which holds
 * few tokens, sums weights exactly. The range is a guess: if the descent does not end in it, the
 * search restarts from the whole row.
 *
 * Every CTA fills bins of its own; then each CTA sums an equal part of the bins over all CTAs, a
 * bin per thread.
 */
#ifndef GUMBEL_CUDA_CLUSTER_BINS_CUH
#define GUMBEL_CUDA_CLUSTER_BINS_CUH

#include "cuda/truncated/cluster/cluster_slice.cuh"

namespace
{

constexpr int kBinsPerCta = kBins / kClusterCtas; /* bins that a CTA sums */
static_assert(kBinsPerCta % 32 == 0 && kBinsPerCta <= kThreads && kBins % kThreads == 0,
              "a bin a thread");

/* ------------------------------------------------------------------- walks down the bins ---- */

struct joined_sum {
    wide_sum value;
    static __device__ __forceinline__ joined_sum empty() { return {{0, 0}}; }
    __device__ __forceinline__ void join_warp() { value = sum_of_warp(value); }
};

/* The sums over all higher threads of the CTA; `all` receives the total. Begins with a barrier. */
__device__ __noinline__ wide_sum sum_higher_threads(wide_sum own, wide_sum &all)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    wide_sum *slots = (wide_sum *)shared_state().slots, sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        uint64_t high = __shfl_down_sync(~0u, (unsigned long long)sum.high, step);
        uint64_t low = __shfl_down_sync(~0u, (unsigned long long)sum.low, step);
        sum = sum + (lane + step < 32 ? wide_sum{high, low} : wide_sum{0, 0});
    }
    __syncthreads();
    if (lane == 0)
        slots[warp] = sum;
    __syncthreads();
    wide_sum other = lane < kWarps ? slots[lane] : wide_sum{0, 0};
    joined_sum total = {other}, higher = {lane > warp ? other : wide_sum{0, 0}};
    total.join_warp();
    higher.join_warp();
    all = total.value;
    return {sum.high - own.high + higher.value.high, sum.low - own.low + higher.value.low};
}

/* The sums over all higher threads and higher ranks; `all` receives the total of the cluster. */
__device__ __forceinline__ wide_sum sum_higher_in_cluster(wide_sum own, wide_sum &all)
{
    wide_sum of_cta, above = sum_higher_threads(own, of_cta);
    const exchange_slot *buffers = exchange_in_cluster(joined_sum{of_cta});
    int lane = threadIdx.x % 32;
    wide_sum other = lane < kClusterCtas ? *(const wide_sum *)&buffers[lane] : wide_sum{0, 0};
    joined_sum total = {other}, higher = {lane > cluster_rank() ? other : wide_sum{0, 0}};
    total.join_warp();
    higher.join_warp();
    all = total.value;
    return above + higher.value;
}

/* Finds the bin in which the weight reaches `needed`. Thread t < kBinsPerCta holds the sum of bin t
 * of its CTA's bins. For all threads. */
__device__ __noinline__ found_bin walk_down_in_cluster(wide_sum own, wide_sum start,
                                                       gumbel_wide needed)
{
    wide_sum all;
    if (threadIdx.x == 0)
        shared_state().decision.bin = -1;
    wide_sum above = start + sum_higher_in_cluster(own, all);
    gumbel_wide higher = above.value();
    if (higher < needed && higher + own.value() >= needed)
        publish_found_bin({cluster_rank() * kBinsPerCta + (int)threadIdx.x, above});
    return wait_for_found_bin();
}

/* ------------------------------------------------------------------------------ even bins ---- */

/* kBins bins of equal width from `low` on; the last one is unbounded. */
struct even_bins {
    float low, scale; /* bins per unit */

    __device__ __forceinline__ int bin_of(float v) const
    {
        return min((int)((v - low) * scale), kBins - 1);
    }

    /* Distance of a bin's beginning from `low`. */
    __device__ __forceinline__ float edge_of(int bin) const { return (float)bin / scale; }
};

/* Sets the bins from low to high; returns false if the range is empty or too wide. */
__device__ __forceinline__ bool make_bins(even_bins &bins, float low, float high)
{
    bins = {low, (float)kBins / (high - low)};
    return high - low > 0x1p-100f && high - low < 0x1p100f;
}

struct key_range {
    uint32_t low, high;
};

/* The keys of bins first .. last, with a margin for rounding. */
__device__ __forceinline__ key_range keys_of_bins(const even_bins &bins, int first, int last,
                                                  float largest)
{
    float from = bins.low + bins.edge_of(first), to = bins.low + bins.edge_of(last + 1);
    float margin = 0x1p-6f / bins.scale + fmaxf(fabsf(from), fabsf(to)) * 0x1p-22f;
    return {gumbel_key_of_value(fmaxf(from - margin, bins.low)),
            gumbel_key_of_value(fminf(to + margin, largest))};
}

/* Zeroes this CTA's bins, between two barriers of the CTA. */
template <class T> __device__ __forceinline__ void clear_bins(T *bins)
{
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kBins; i += kThreads)
        bins[i + threadIdx.x] = 0;
    __syncthreads();
}

/* Publishes this CTA's bins; returns the sum of this thread's bin over all CTAs. */
template <class T> __device__ __forceinline__ T sum_bins_of_cluster(T *bins)
{
    T sum = 0;
    publish_bins(bins);
    sync_cluster();
    if (threadIdx.x < kBinsPerCta)
#pragma unroll
        for (int rank = 0; rank < kClusterCtas; rank++)
            sum += bins_of_rank(bins, rank)[cluster_rank() * kBinsPerCta + threadIdx.x];
    return sum;
}

/* Counts the row's tokens in the bins; returns the count of this thread's bin. */
__device__ __noinline__ uint32_t count_in_bins(slice_source source, logit_values values,
                                               even_bins bins)
{
    uint32_t *counts = (uint32_t *)shared_state().scratch.high;
    clear_bins(counts);
    auto may = [&](float y) { return values.to_value(y) >= bins.low; };
    source.each(may, [&](int32_t, float y) {
        float v = values.to_value(y);
        if (v >= bins.low)
            atomicAdd(&counts[bins.bin_of(v)], 1);
    });
    return sum_bins_of_cluster(counts);
}

/* The range of keys that holds the n-th largest value; low > high if there is none. */
__device__ __noinline__ key_range guess_nth_keys(slice_source source, logit_values values,
                                                 even_bins bins, float largest, uint64_t n)
{
    uint32_t count = count_in_bins(source, values, bins);
    found_bin found = walk_down_in_cluster({0, count}, {0, 0}, n);
    if (found.bin < 0)
        return {1, 0};
    return keys_of_bins(bins, found.bin, found.bin, largest);
}

struct bin_range {
    int first, last;
    static __device__ __forceinline__ bin_range empty() { return {kBins, 0}; }
    __device__ __forceinline__ void join_warp()
    {
        first = __reduce_min_sync(~0u, first);
        last = __reduce_max_sync(~0u, last);
    }
};

/* The range of keys that may hold the end of a nucleus of top_p. The tokens below all bins have at
 * most `below` of the largest token's mass. A bin of c tokens has a mass between c times the masses
 * at its edges. The nucleus may end in a bin if (1 - p) above < p rest may hold for the tokens
 * above the bin, and may fail with the bin included. Masses count in units of 2^-40. */
__device__ __noinline__ key_range guess_nucleus_keys(slice_source source, logit_values values,
                                                     even_bins bins, float largest, double top_p,
                                                     float below)
{
    const float unit = 0x1p40f, from = bins.low - largest;
    uint32_t count = count_in_bins(source, values, bins);
    int bin = cluster_rank() * kBinsPerCta + (int)threadIdx.x;
    /* 2^-12 covers the rounding of bins and exponentials. Only some tokens equal to an earlier
     * cutoff, which are in the first bin, may count. */
    uint64_t min_mass = unit * ptx_exp2((from + bins.edge_of(bin) - 0x1p-12f) * LOG2E);
    uint64_t max_mass = unit * ptx_exp2((from + bins.edge_of(bin + 1) + 0x1p-12f) * LOG2E);
    wide_sum own = {count * (max_mass + 1), bin > 0 ? count * min_mass : 0}, all;
    if (threadIdx.x >= kBinsPerCta)
        own = {0, 0};
    wide_sum above = sum_higher_in_cluster(own, all);
    double rest = (double)(all.high - above.high) + below * unit;
    bin_range range = bin_range::empty();
    if (threadIdx.x < kBinsPerCta) {
        if ((1 - top_p) * (double)above.low < top_p * rest)
            range.first = bin;
        above = above + own;
        if ((1 - top_p) * (double)above.high >= top_p * (double)(all.low - above.low))
            range.last = bin;
    }
    range = join_cluster(range);
    return keys_of_bins(bins, range.first, range.last, largest);
}

/* -------------------------------------------------------------------------------- descent ---- */

/* Further sums of the first step of a descent: the weight above its keys, the total weight, and the
 * number of tokens equal to an earlier cutoff. */
struct descent_sums {
    wide_sum above, all;
    uint64_t equal;

    static __device__ __forceinline__ descent_sums empty() { return {{0, 0}, {0, 0}, 0}; }

    __device__ __forceinline__ void join_warp()
    {
        above = sum_of_warp(above);
        all = sum_of_warp(all);
        equal = sum_of_warp(equal);
    }
};

/* Result of a descent, and the sum that it had to reach. */
struct cluster_descent_result {
    descent_result end;
    gumbel_wide needed;
};

/* One step: sums the weights of keys low .. high in bins of 2^shift keys; publishes the bins. */
template <bool first, class Rule>
__device__ __forceinline__ void fill_bins(slice_source source, Rule rule, uint32_t low,
                                          uint32_t high, int shift, descent_sums &sums)
{
    row_scratch &scratch = shared_state().scratch;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kBins; i += kThreads)
        scratch.high[i + threadIdx.x] = scratch.low[i + threadIdx.x] = 0;
    __syncthreads();
    auto may = [&](float y) {
        return Rule::by_mass && first ? rule.may_count(y) : rule.may_reach(y, low);
    };
    source.each(may, [&](int32_t id, float y) {
        uint32_t key;
        uint64_t own = 1;
        if (!rule.find_key(id, y, key))
            return;
        if (Rule::by_mass && (first || (key >= low && key <= high)))
            own = rule.weight_of(y);
        if (first) {
            sums.above.add(key > high ? own : 0);
            bool equal = rule.is_tied(y);
            sums.equal += equal;
            sums.all.add(equal ? 0 : own);
        }
        if (key < low || key > high)
            return;
        int bin = (int)((key - low) >> shift);
        if (Rule::by_mass) {
            atomicAdd(&scratch.low[bin], own & kLowHalf);
            atomicAdd(&scratch.high[bin], own >> GUMBEL_MASS_HALF_BITS);
        } else {
            atomicAdd((uint32_t *)&scratch.low[bin], 1);
        }
    });
    publish_bins(scratch.low);
    if (Rule::by_mass)
        publish_bins(scratch.high);
}

/* The sum of this thread's bin over all CTAs. */
template <bool by_mass> __device__ __forceinline__ wide_sum sum_bin()
{
    wide_sum sum = {0, 0};
    int bin = cluster_rank() * kBinsPerCta + threadIdx.x;
    if (threadIdx.x < kBinsPerCta)
#pragma unroll
        for (int rank = 0; rank < kClusterCtas; rank++) {
            sum.low += bins_of_rank(shared_state().scratch.low, rank)[bin];
            sum.high += by_mass ? bins_of_rank(shared_state().scratch.high, rank)[bin] : 0;
        }
    return sum;
}

/* Descends over the keys low .. high, as descend_keys() in a CTA, for all threads of the cluster.
 * The rule defines which tokens count, their keys and masses, and the required sum. */
template <class Rule>
__device__ __noinline__ cluster_descent_result descend_in_cluster(slice_source source,
                                                                  key_range keys, Rule rule)
{
    uint32_t low = keys.low, high = keys.high;
    gumbel_wide needed = 0;
    wide_sum start = {0, 0};
    for (bool first = true; low <= high; first = false) {
        int bits = low == high ? 0 : 32 - __clz(high - low);
        int shift = bits > kBinBits ? bits - kBinBits : 0;
        descent_sums sums = descent_sums::empty();
        if (first) {
            fill_bins<true>(source, rule, low, high, shift, sums);
            sums = join_cluster<EXCHANGE_MEMORY>(sums);
            needed = rule.required_sum(sums);
            start = sums.above;
        } else {
            fill_bins<false>(source, rule, low, high, shift, sums);
            sync_cluster();
        }
        found_bin found = walk_down_in_cluster(sum_bin<Rule::by_mass>(), start, needed);
        if (found.bin < 0)
            break;
        start = found.above;
        low += (uint32_t)found.bin << shift;
        high = min(high, low + ((1u << shift) - 1));
        if (shift == 0)
            return {{true, low, found.above.value()}, needed};
    }
    return {{false, 0, 0}, needed};
}

} // namespace

#endif
