/* SPDX-License-Identifier: Apache-2.0
 *
 * The cut of a row by one CTA (docs/maths.md, section 9).
 */
#ifndef GUMBEL_CUDA_REQUEST_CUT_CUH
#define GUMBEL_CUDA_REQUEST_CUT_CUH

#include "cuda/request/row/request_descent.cuh"
#include "cuda/request/row/request_wanted.cuh"

namespace
{

/* Which tokens stay: those above the bound, and of its equals those up to last_id. */
struct request_cut {
    float bound;
    int32_t last_id;

    __device__ __forceinline__ bool keeps(int32_t id, float value) const
    {
        return value > bound || (value == bound && id <= last_id);
    }
};

/* The y of each thread's largest value. */
struct peaks_source {
    static constexpr bool is_row = false;
    static constexpr int count = kThreads;
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
        return nth_of(source, n, least.reached ? gumbel_value_of_key(least.key) : floor);
    }

    template <class Of>
    __device__ __forceinline__ landing nth_of(const Of &of, uint64_t n, float floor,
                                              int rough = 0) const
    {
        return descend<false>(
            of, x, gumbel_key_of_value(floor), gumbel_key_of_value(largest), n,
            [&](int32_t, float y, auto offer) {
                float v = values.of(y);
                if (!isnan(v))
                    offer(gumbel_key_of_value(v), 1);
            },
            rough);
    }

    __device__ __forceinline__ uint64_t mass_of(float v) const
    {
        return gumbel_token_mass(gumbel_exp(v - largest));
    }

    /* top_p of what `from` keeps. */
    __device__ gumbel_cutoff cut_top_p(float top_p, bool exact, gumbel_cutoff from) const
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
        gumbel_wide needed = gumbel_nucleus_mass(top_p, mass);
        float floor = gumbel_nucleus_search_start(largest, mass - needed, (int64_t)count, from);
        landing end =
            descend<true>(source, x, gumbel_key_of_value(floor), gumbel_key_of_value(largest),
                          needed, [&](int32_t, float y, auto offer) {
                              float v = values.of(y);
                              if (v >= floor)
                                  offer(gumbel_key_of_value(v), mass_of(v));
                          });
        float value = gumbel_value_of_key(end.key);
        return gumbel_cutoff_by_top_p(exact, value, needed, end.above, mass_of(value));
    }

    /* The last id that stays, where only the first `tied` equals of the bound do. */
    __device__ int32_t last_of_ties(gumbel_cutoff cut) const
    {
        if (cut.tied == GUMBEL_TIES_ALL_KEPT)
            return INT32_MAX;
        landing last = descend<false>(source, x, ~(uint32_t)INT32_MAX, ~0u, (uint64_t)cut.tied,
                                      [&](int32_t id, float y, auto offer) {
                                          if (values.of(y) == cut.bound)
                                              offer(~(uint32_t)id, 1);
                                      });
        return last.reached ? (int32_t)~last.key : INT32_MAX;
    }
};

/* The cut of a row; a finder finds the n-th largest value, a nucleus, the last of ties. */
template <class Finder>
__device__ inline request_cut find_cut(Finder &finder, const gumbel_rules &r)
{
    gumbel_cutoff behind = gumbel_cutoff_before_top_k(&r, finder.largest);
    if (r.top_k > 0) {
        landing k = finder.nth((uint64_t)r.top_k, behind.bound);
        if (k.reached)
            behind = gumbel_cutoff_by_top_k(&r, gumbel_value_of_key(k.key), (int64_t)k.above);
    }
    gumbel_cutoff cut = gumbel_cutoff_without_top_p(&r, behind, finder.largest);
    if (r.top_p < 1.0f) {
        gumbel_cutoff nucleus =
            finder.cut_top_p(r.top_p, r.exact, gumbel_cutoff_before_top_p(&r, behind));
        cut = gumbel_stricter_cutoff(cut, nucleus);
    }
    return {cut.bound, finder.last_of_ties(cut)};
}

} // namespace

#endif
