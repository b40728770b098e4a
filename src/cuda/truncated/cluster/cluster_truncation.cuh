/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncation of a row by a cluster, and which rows one CTA can finish alone.
 */
#ifndef GUMBEL_CUDA_CLUSTER_TRUNCATION_CUH
#define GUMBEL_CUDA_CLUSTER_TRUNCATION_CUH

#include "cuda/truncated/cluster/cluster_bins.cuh"

namespace
{

/* ---------------------------------------------------------------------------------- rules ---- */

/* Orders tokens by value; tokens below `min_value` do not count. */
struct value_rule {
    logit_values values;
    float min_value;

    __device__ __forceinline__ bool may_count(float y) const
    {
        return values.to_value(y) >= min_value;
    }
    __device__ __forceinline__ bool may_reach(float y, uint32_t low) const
    {
        return values.to_value(y) >= gumbel_value_of_key(low);
    }
    __device__ __forceinline__ bool find_key(int32_t, float y, uint32_t &key) const
    {
        float v = values.to_value(y);
        key = gumbel_key_of_value(v);
        return v >= min_value;
    }
};

/* Searches for the n-th token. */
struct count_rule {
    static constexpr bool by_mass = false;
    uint64_t n;

    __device__ __forceinline__ uint64_t weight_of(float) const { return 1; }
    __device__ __forceinline__ bool is_tied(float) const { return false; }
    __device__ __forceinline__ gumbel_wide required_sum(const descent_sums &) const { return n; }
};

/* The n-th largest value. */
struct nth_rule : value_rule, count_rule {
};

/* The n-th lowest id among the tokens of a value. */
struct tie_rule : count_rule {
    logit_values values;
    float bound;

    __device__ __forceinline__ bool may_count(float y) const { return values.to_value(y) >= bound; }
    __device__ __forceinline__ bool may_reach(float y, uint32_t) const { return may_count(y); }
    __device__ __forceinline__ bool find_key(int32_t id, float y, uint32_t &key) const
    {
        key = ~(uint32_t)id;
        return values.to_value(y) == bound;
    }
};

/* The end of a nucleus of the tokens that an earlier cutoff keeps. Tokens below `min_value` have no
 * mass or do not count. */
struct nucleus_rule : value_rule {
    static constexpr bool by_mass = true;
    float largest; /* largest value */
    float top_p;
    gumbel_cutoff from;

    __device__ __forceinline__ uint64_t mass_of(float v) const
    {
        return gumbel_token_mass(gumbel_exp(v - largest));
    }
    __device__ __forceinline__ uint64_t weight_of(float y) const
    {
        return mass_of(values.to_value(y));
    }
    __device__ __forceinline__ bool is_tied(float y) const
    {
        return values.to_value(y) == from.bound;
    }
    __device__ __forceinline__ gumbel_wide required_sum(const descent_sums &sums) const
    {
        gumbel_wide mass = sums.all.value();
        if (sums.equal)
            mass += (gumbel_wide)min(sums.equal, (uint64_t)from.tied) * mass_of(from.bound);
        return gumbel_nucleus_mass(top_p, mass);
    }
};

/* A value below which all `alive` tokens together have less than a twentieth of 1 - top_p of the
 * largest token's mass, so that no nucleus ends there. */
__device__ __forceinline__ float nucleus_threshold(float largest, float top_p, uint32_t alive)
{
    float gap = gumbel_log((1.0f - top_p) / (float)alive) - 3.0f;
    return largest + fmaxf(gap, -GUMBEL_MASS_REACH) - fabsf(largest) * 0x1p-21f;
}

struct cluster_kept_set_finder {
    slice_source source;
    logit_values values;
    row_facts facts;
    float largest; /* largest value */

    /* Finds the n-th largest value that is at least `lowest`. A value that n tokens reach bounds
     * the search from below. */
    __device__ descent_result find_nth(uint64_t n, float lowest) const
    {
        uint32_t reached = facts.num_maxima >= n ? facts.lowest_max : facts.lowest;
        float low = fmaxf(values.to_value(gumbel_value_of_key(reached)), lowest);
        nth_rule rule = {{values, lowest}, {n}};
        even_bins bins;
        if (make_bins(bins, low, largest)) {
            key_range guess = guess_nth_keys(source, values, bins, largest, n);
            if (guess.low > guess.high)
                return {false, 0, 0};
            descent_result end = descend_in_cluster(source, guess, rule).end;
            if (end.reached)
                return end;
        }
        return descend_in_cluster(source, {gumbel_key_of_value(low), gumbel_key_of_value(largest)},
                                  rule)
            .end;
    }

    /* Truncates by top_p the tokens that the cutoff `from` keeps. */
    __device__ gumbel_cutoff find_nucleus(float top_p, bool exact, gumbel_cutoff from) const
    {
        float min_value = fmaxf(from.bound, largest - GUMBEL_MASS_REACH);
        float lowest = fmaxf(nucleus_threshold(largest, top_p, facts.alive), min_value);
        nucleus_rule rule = {{values, min_value}, largest, top_p, from};
        cluster_descent_result found = {};
        even_bins bins;
        if (make_bins(bins, lowest, largest)) {
            float below =
                lowest > from.bound ? (float)facts.alive * gumbel_exp(lowest - largest) : 0.0f;
            found = descend_in_cluster(
                source, guess_nucleus_keys(source, values, bins, largest, top_p, below), rule);
        }
        if (!found.end.reached)
            found = descend_in_cluster(
                source, {gumbel_key_of_value(lowest), gumbel_key_of_value(largest)}, rule);
        float value = gumbel_value_of_key(found.end.key);
        return gumbel_cutoff_by_top_p(exact, value, found.needed, found.end.above,
                                      rule.mass_of(value));
    }

    /* Returns the last id that is kept among tokens equal to the bound, if only the first `tied`
     * are. */
    __device__ int32_t find_last_tie(gumbel_cutoff ties) const
    {
        if (ties.tied == GUMBEL_TIES_ALL_KEPT)
            return INT32_MAX;
        tie_rule rule = {{(uint64_t)ties.tied}, values, ties.bound};
        descent_result last = descend_in_cluster(source, {~(uint32_t)INT32_MAX, ~0u}, rule).end;
        return last.reached ? (int32_t)~last.key : INT32_MAX;
    }
};

/* --------------------------------------------------------- rows that one CTA can finish ---- */

/* Number of largest tokens among which the nucleus of a whole row is expected. */
constexpr int kNucleusTokens = 320;

/* Whether a row that candidates alone cannot serve can be served by a list of tokens and the mass
 * of all tokens, which its nucleus refers to; sets the required tokens. */
__device__ inline bool can_serve_by_mass(const cuda_truncated_params &p, const truncated_row &row,
                                         required_tokens &required)
{
    const gumbel_rules &r = row.rules;
    bool others = truncates_by_value(r);
    if (p.partials || row.draw.greedy || !(r.top_p < 1.0f) || r.top_k > CUDA_TRUNCATED_TOP_MAX ||
        (others && !r.joint))
        return false;
    required = find_required_tokens(p, row, row.draw.greedy);
    if (!others)
        required = {(uint32_t)max(kNucleusTokens, p.output.num_top), -INFINITY, false};
    return true;
}

/* Whether a row is so flat that kNucleusTokens tokens are unlikely to hold a nucleus: the other
 * tokens could have `max_ratio` times the mass of the largest. A wrong estimate costs only time. */
__device__ __forceinline__ bool is_flat(logit_values values, const row_facts &facts)
{
    constexpr float max_ratio = 500.0f;
    float near = values.to_value(gumbel_value_of_key(facts.reached_key));
    float largest = values.to_value(gumbel_value_of_key(facts.highest));
    return (float)facts.alive * gumbel_exp(near - largest) > max_ratio;
}

} // namespace

#endif
