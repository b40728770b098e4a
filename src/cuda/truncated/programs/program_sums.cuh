/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes of a cluster over the slices of a row that runs its program: sums, searches, removals and
 * changes of values, in shared memory. A removed token is -inf, or below the bound of the row. For
 * all threads of the cluster.
 */
#ifndef GUMBEL_CUDA_PROGRAM_SUMS_CUH
#define GUMBEL_CUDA_PROGRAM_SUMS_CUH

#include "cuda/truncated/cluster/cluster_serve.cuh"
#include "cuda/truncated/programs/program_state.cuh"

namespace
{

/* Calls f(place, v) for the values of a slice from `bound` on; f may change v. Places of a thread
 * stay its own from pass to pass. */
template <class F> __device__ __forceinline__ void each_value(slice_source source, float bound, F f)
{
#pragma unroll 2
    for (int at = 4 * threadIdx.x; at < source.size; at += 4 * kThreads) {
        const float4 y = *(const float4 *)(slice_logits() + at);
        if (largest_of({y.x, y.y, y.z, y.w}) >= bound)
#pragma unroll 1
            for (int i = 0; i < 4; i++)
                if (slice_logits()[at + i] >= bound)
                    f(at + i, slice_logits()[at + i]);
    }
}

/* The sums that `required` names, GUMBEL_FACT_ bits of one rule; largest: of all values. */
__device__ __noinline__ gumbel_facts sum_facts(slice_source source, float bound, int required,
                                               float largest)
{
    gumbel_facts own = {};
    each_value(source, bound, [&](int, float v) { add_to_facts(own, required, v, largest); });
    const fact_sums sums = pack_facts(own, required);
    const joined_facts all =
        join_cluster(joined_facts::pack_sums((uint64_t)own.count, sums.first, sums.second));
    return unpack_facts({all.get_first(), all.get_second()}, (int64_t)all.count, required);
}

/* Removes the values below `bound`. Returns the facts of the others that serving the row requires;
 * z is value * factor. */
__device__ __noinline__ row_facts remove_and_scan(slice_source source, float bound, float factor)
{
    row_facts own = row_facts::empty();
#pragma unroll 1
    for (int at = 4 * threadIdx.x; at < source.size; at += 4 * kThreads) {
        float4 &quad = *(float4 *)(slice_logits() + at);
        const float v[4] = {quad.x, quad.y, quad.z, quad.w};
        if (!(largest_of({v[0], v[1], v[2], v[3]}) >= bound)) {
            quad = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            continue;
        }
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const float z = v[i] * factor;
            if (!(v[i] >= bound)) {
                slice_logits()[at + i] = -INFINITY;
                continue;
            }
            own.flags |= flags_of_z(z);
            if (!(z > -INFINITY))
                continue;
            own.alive++;
            own.highest = max(own.highest, gumbel_key_of_value(v[i]));
            own.lowest = min(own.lowest, gumbel_key_of_value(v[i]));
        }
    }
    __syncthreads();
    return join_cluster(own);
}

/* Changes every value from `bound` on to change(v), and removes the others. */
template <class F>
__device__ __forceinline__ void change_values(slice_source source, float bound, F change)
{
#pragma unroll 2
    for (int at = 4 * threadIdx.x; at < source.size; at += 4 * kThreads) {
        float4 &y = *(float4 *)(slice_logits() + at);
        y = {y.x >= bound ? change(y.x) : -INFINITY, y.y >= bound ? change(y.y) : -INFINITY,
             y.z >= bound ? change(y.z) : -INFINITY, y.w >= bound ? change(y.w) : -INFINITY};
    }
    __syncthreads();
}

/* Removes the tokens that `kept` lacks. */
__device__ __noinline__ void remove_others(slice_source source, kept_set kept)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < source.size; i += kThreads)
        if (!kept.has_token((int32_t)source.begin + i, slice_logits()[i]))
            slice_logits()[i] = -INFINITY;
    __syncthreads();
}

__device__ __noinline__ void scale_values(slice_source source, float bound, float factor)
{
    change_values(source, bound, [=](float v) { return v * factor; });
}

__device__ __noinline__ void smooth_values(slice_source source, float bound, float largest,
                                           float factor, float curve)
{
    change_values(source, bound,
                  [=](float v) { return gumbel_smooth_value(v, largest, factor, curve); });
}

__device__ __noinline__ void adapt_values(slice_source source, float bound, float largest,
                                          float inverse_mass, float target)
{
    change_values(source, bound,
                  [=](float v) { return gumbel_adapt_value(v, largest, inverse_mass, target); });
}

/* --------------------------------------------------------------------------------- typical ---- */

/* Orders tokens from `bound` on by descending distance: the key is the complement of its bits, as
 * distances are at least 0. */
struct distance_rule {
    float bound, largest, centre;

    __device__ __forceinline__ float find_distance(float y) const
    {
        return gumbel_typical_distance(y, largest, centre);
    }
    __device__ __forceinline__ bool may_count(float y) const { return y >= bound; }
    __device__ __forceinline__ bool may_reach(float y, uint32_t) const { return may_count(y); }
    __device__ __forceinline__ bool find_key(int32_t, float y, uint32_t &key) const
    {
        key = ~gumbel_bits_of(find_distance(y));
        return y >= bound;
    }
    __device__ __forceinline__ bool is_tied(float) const { return false; }
};

/* Searches for the end of the closest tokens with a mass of `needed`. */
struct distance_mass_rule : distance_rule {
    static constexpr bool by_mass = true;
    static constexpr int dropped_bits = 21; /* of weights in guesses */
    gumbel_wide needed;

    __device__ __forceinline__ uint64_t weight_of(float y) const
    {
        return gumbel_token_mass(gumbel_exp(y - largest));
    }
    __device__ __forceinline__ gumbel_wide required_sum(const descent_sums &) const
    {
        return needed;
    }
};

/* Searches for the end of the `needed` closest tokens. */
struct distance_count_rule : distance_rule {
    static constexpr bool by_mass = false;
    static constexpr int dropped_bits = 0;
    gumbel_wide needed;

    __device__ __forceinline__ uint64_t weight_of(float) const { return 1; }
    __device__ __forceinline__ gumbel_wide required_sum(const descent_sums &) const
    {
        return needed;
    }
};

/* Sums weights, without their lowest bits, in kBins bins of equal width over the distances 0 ..
 * `farthest`; returns the sum of this thread's bin. */
template <class Rule>
__device__ __forceinline__ uint64_t sum_distance_bins(slice_source source, const Rule &rule,
                                                      float farthest)
{
    unsigned long long *bins = shared_state().scratch.high;
    clear_bins(bins);
    const float scale = (float)kBins / farthest;
    each_value(source, rule.bound, [&](int, float v) {
        const int bin = min((int)(rule.find_distance(v) * scale), kBins - 1);
        atomicAdd(&bins[bin], (unsigned long long)(rule.weight_of(v) >> Rule::dropped_bits));
    });
    return sum_bins_of_cluster(bins);
}

/* A range of keys in which the search probably ends: those of the bin up to which the weights reach
 * `needed` of `total`, and of its neighbours, as bins and sums are rounded. Low > high: none. */
template <class Rule>
__device__ __forceinline__ key_range guess_distance_keys(slice_source source, const Rule &rule,
                                                         float farthest, gumbel_wide needed,
                                                         gumbel_wide total)
{
    if (!(farthest > 0x1p-100f && farthest < 0x1p100f) || total < needed)
        return {1, 0};
    const uint64_t own = sum_distance_bins(source, rule, farthest);
    /* From the last bin on: the bins beyond the one that is sought have at most the rest. */
    const gumbel_wide rest = (total - needed) >> Rule::dropped_bits;
    const found_bin found = walk_down_in_cluster({0, own}, {0, 0}, rest + 1);
    if (found.bin < 0)
        return {1, 0};
    const float width = farthest / (float)kBins;
    return {~gumbel_bits_of((float)(found.bin + 2) * width),
            ~gumbel_bits_of(fmaxf((float)(found.bin - 1) * width, 0.0f))};
}

/* The distance up to which tokens have a weight of `needed`, of `total`; +inf: all have less. */
template <class Rule>
__device__ __forceinline__ float find_reach(slice_source source, const Rule &rule, float farthest,
                                            gumbel_wide total)
{
    const key_range guess = guess_distance_keys(source, rule, farthest, rule.needed, total);
    descent_result end = {false, 0, 0};
    if (guess.low <= guess.high)
        end = descend_in_cluster(source, guess, rule).end;
    if (!end.reached) /* all distances; a power of two of keys, so that no bin ends past the last */
        end = descend_in_cluster(source, {1u << 31, ~0u}, rule).end;
    return end.reached ? gumbel_float_of(~end.key) : INFINITY;
}

__device__ __noinline__ void remove_atypical(slice_source source, const distance_rule &rule,
                                             float reach)
{
    change_values(source, rule.bound,
                  [&](float v) { return rule.find_distance(v) > reach ? -INFINITY : v; });
}

/* ------------------------------------------------------------------------------------- XTC ---- */

/* Number of values that reach a bound, and the key of the smallest one, complemented. */
struct joined_smallest {
    uint32_t count, key;
    static __device__ __forceinline__ joined_smallest empty() { return {0, 0}; }
    __device__ __forceinline__ void join_warp()
    {
        count = __reduce_add_sync(~0u, count);
        key = __reduce_max_sync(~0u, key);
    }
};

/* The number of values that reach `bound`, and the smallest one of them. */
__device__ __noinline__ uint32_t find_smallest_from(slice_source source, float bound,
                                                    float &smallest)
{
    joined_smallest own = joined_smallest::empty();
    each_value(source, bound, [&](int, float v) {
        own.count++;
        own.key = max(own.key, ~ordered_bits(v));
    });
    own = join_cluster(own);
    smallest = ordered_float(~own.key);
    return own.count;
}

/* The tokens that XTC excludes: values above `from`, and equal ones with an id below `end`. */
struct excluded_set {
    float from;
    int64_t end;

    __device__ __forceinline__ bool has_token(int32_t id, float v) const
    {
        return v > from || (v == from && id < end);
    }
};

/* The highest id of a token with the value `from`; without ties by id, 0. */
__device__ __noinline__ excluded_set find_excluded(slice_source source, float from, bool exact)
{
    uint32_t last = 0;
    each_value(source, from, [&](int place, float v) {
        if (exact && v == from)
            last = max(last, (uint32_t)source.begin + place);
    });
    return {from, (int64_t)join_cluster(joined_key{last}).value};
}

/* Number and mass of the excluded tokens, relative to the largest value, and of the others,
 * relative to excluded.from, which is their largest value. */
struct exclusion_sums {
    gumbel_facts excluded, remaining;
};

__device__ __forceinline__ void join_masses(gumbel_facts &facts)
{
    const joined_facts all =
        join_cluster(joined_facts::pack_sums((uint64_t)facts.count, facts.mass, 0));
    facts.count = (int64_t)all.count;
    facts.mass = all.get_first();
}

__device__ __noinline__ exclusion_sums sum_exclusion(slice_source source, float bound,
                                                     excluded_set excluded, float largest)
{
    exclusion_sums own = {};
    each_value(source, bound, [&](int place, float v) {
        const bool is_out = excluded.has_token((int32_t)source.begin + place, v);
        const float from = is_out ? largest : excluded.from;
        gumbel_facts_add(is_out ? &own.excluded : &own.remaining, GUMBEL_FACT_MASS, v, from,
                         gumbel_exp(v - from), 0.0f);
    });
    join_masses(own.excluded);
    join_masses(own.remaining);
    return own;
}

/* Whether a token of the row's xtc_keep list is excluded. */
__device__ __noinline__ bool excludes_listed(const gumbel_problem &q, slice_source source,
                                             excluded_set excluded, int64_t b)
{
    const gumbel_token_lists &lists = q.programs.xtc_keep;
    uint32_t found = 0;
    if (!lists.offsets)
        return false;
    const int64_t list = gumbel_problem_list_of_row(&q, b);
    for (int64_t i = lists.offsets[list] + threadIdx.x; i < lists.offsets[list + 1];
         i += kThreads) {
        const int64_t place = lists.ids[i] - source.begin;
        if (place >= 0 && place < source.size)
            found |= excluded.has_token(lists.ids[i], slice_logits()[place]);
    }
    return join_cluster(joined_flags{found}).value != 0;
}

__device__ __noinline__ void shift_excluded(slice_source source, excluded_set excluded, float shift)
{
    each_value(source, excluded.from, [&](int place, float &v) {
        if (excluded.has_token((int32_t)source.begin + place, v))
            v += shift;
    });
    __syncthreads();
}

} // namespace

#endif
