/* SPDX-License-Identifier: Apache-2.0
 *
 * The kept set of a row after truncation, found by one CTA (docs/maths.md, section 9).
 */
#ifndef GUMBEL_CUDA_KEPT_SET_CUH
#define GUMBEL_CUDA_KEPT_SET_CUH

#include "cuda/truncated/row/row_descent.cuh"
#include "cuda/truncated/row/required_tokens.cuh"

namespace
{

/* Tokens that truncation keeps: those with a value above `bound`, and those equal to it with an id
 * up to last_id. */
struct kept_set {
    float bound;
    int32_t last_id;

    __device__ __forceinline__ bool has_token(int32_t id, float value) const
    {
        return value > bound || (value == bound && id <= last_id);
    }
};

/* Source of one y per thread: the largest that the thread has read. */
struct maxima_source {
    static constexpr bool is_row = false;
    static constexpr int count = kThreads;
    const float *maxima; /* [kThreads] */

    template <class F> __device__ __forceinline__ void each(F f) const
    {
        f((int32_t)threadIdx.x, maxima[threadIdx.x]);
    }
};

template <class Source> struct kept_set_finder {
    const Source &source;
    truncated_scratch &x;
    logit_values values;
    float largest; /* largest value of the row */
    maxima_source maxima;

    /* Finds the n-th largest value. If n threads' maxima reach some value, at least n tokens do, so
     * that value limits the search to few tokens. */
    __device__ descent_result find_nth(uint64_t n, float lowest) const
    {
        descent_result reached = {false, 0, 0};
        if (Source::is_row && n <= kThreads)
            reached = find_nth_in(maxima, n, lowest);
        return find_nth_in(source, n, reached.reached ? gumbel_value_of_key(reached.key) : lowest);
    }

    template <class Of>
    __device__ __forceinline__ descent_result find_nth_in(const Of &of, uint64_t n, float lowest,
                                                          int rough = 0) const
    {
        return descend_keys<false>(
            of, x, gumbel_key_of_value(lowest), gumbel_key_of_value(largest), n,
            [&](int32_t, float y, auto offer) {
                float v = values.to_value(y);
                if (!isnan(v))
                    offer(gumbel_key_of_value(v), 1);
            },
            rough);
    }

    __device__ __forceinline__ uint64_t mass_of(float v) const
    {
        return gumbel_token_mass(gumbel_exp(v - largest));
    }

    /* Truncates by top_p the tokens that the cutoff `from` keeps. */
    __device__ gumbel_cutoff find_nucleus(float top_p, bool exact, gumbel_cutoff from) const
    {
        wide_sum sum = {0, 0};
        uint64_t count = 0, equal = 0;
        source.each([&](int32_t, float y) {
            float v = values.to_value(y);
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
        gumbel_wide mass = sum.value();
        if (equal)
            mass += (gumbel_wide)equal * mass_of(from.bound);
        gumbel_wide needed = gumbel_nucleus_mass(top_p, mass);
        float lowest = gumbel_nucleus_search_start(largest, mass - needed, (int64_t)count, from);
        descent_result end =
            descend_keys<true>(source, x, gumbel_key_of_value(lowest), gumbel_key_of_value(largest),
                               needed, [&](int32_t, float y, auto offer) {
                                   float v = values.to_value(y);
                                   if (v >= lowest)
                                       offer(gumbel_key_of_value(v), mass_of(v));
                               });
        float value = gumbel_value_of_key(end.key);
        return gumbel_cutoff_by_top_p(exact, value, needed, end.above, mass_of(value));
    }

    /* Returns the last id that is kept among tokens equal to the bound, if only the first `tied`
     * are. */
    __device__ int32_t find_last_tie(gumbel_cutoff ties) const
    {
        if (ties.tied == GUMBEL_TIES_ALL_KEPT)
            return INT32_MAX;
        descent_result last =
            descend_keys<false>(source, x, ~(uint32_t)INT32_MAX, ~0u, (uint64_t)ties.tied,
                                [&](int32_t id, float y, auto offer) {
                                    if (values.to_value(y) == ties.bound)
                                        offer(~(uint32_t)id, 1);
                                });
        return last.reached ? (int32_t)~last.key : INT32_MAX;
    }
};

/* Finds the kept set of a row by the rules `r`. */
template <class Finder>
__device__ inline kept_set find_kept_set(Finder &finder, const gumbel_rules &r)
{
    gumbel_cutoff before_top_p = gumbel_cutoff_before_top_k(&r, finder.largest);
    if (r.top_k > 0) {
        descent_result k = finder.find_nth((uint64_t)r.top_k, before_top_p.bound);
        if (k.reached)
            before_top_p = gumbel_cutoff_by_top_k(&r, gumbel_value_of_key(k.key), (int64_t)k.above);
    }
    gumbel_cutoff strictest = gumbel_cutoff_without_top_p(&r, before_top_p, finder.largest);
    if (r.top_p < 1.0f) {
        gumbel_cutoff nucleus =
            finder.find_nucleus(r.top_p, r.exact, gumbel_cutoff_before_top_p(&r, before_top_p));
        strictest = gumbel_stricter_cutoff(strictest, nucleus);
    }
    return {strictest.bound, finder.find_last_tie(strictest)};
}

} // namespace

#endif
