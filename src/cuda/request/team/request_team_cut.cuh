/* SPDX-License-Identifier: Apache-2.0
 *
 * The cut of a row by a team, and what of it a CTA can end alone.
 */
#ifndef GUMBEL_CUDA_REQUEST_TEAM_CUT_CUH
#define GUMBEL_CUDA_REQUEST_TEAM_CUT_CUH

#include "cuda/request/team/request_bins.cuh"

namespace
{

/* ---------------------------------------------------------------------------------- rules ---- */

/* A search by value, among those that are not below the least. */
struct value_rule {
    request_values values;
    float least;

    __device__ __forceinline__ bool may(float y) const { return values.of(y) >= least; }
    __device__ __forceinline__ bool reaches(float y, uint32_t low) const
    {
        return values.of(y) >= gumbel_of_key(low);
    }
    __device__ __forceinline__ bool counts(int32_t, float y, uint32_t &key) const
    {
        float v = values.of(y);
        key = gumbel_key(v);
        return v >= least;
    }
};

/* A search for the n-th token. */
struct count_rule {
    static constexpr bool by_mass = false;
    uint64_t n;

    __device__ __forceinline__ uint64_t mass(float) const { return 1; }
    __device__ __forceinline__ bool equal(float) const { return false; }
    __device__ __forceinline__ gumbel_wide need(const team_sums &) const { return n; }
};

/* The n-th largest value. */
struct nth_rule : value_rule, count_rule {
};

/* The n-th lowest id among the tokens of a value. */
struct tie_rule : count_rule {
    request_values values;
    float bound;

    __device__ __forceinline__ bool may(float y) const { return values.of(y) >= bound; }
    __device__ __forceinline__ bool reaches(float y, uint32_t) const { return may(y); }
    __device__ __forceinline__ bool counts(int32_t id, float y, uint32_t &key) const
    {
        key = ~(uint32_t)id;
        return values.of(y) == bound;
    }
};

/* The end of a nucleus of what an earlier cut keeps; what is below the least has no mass or does
 * not count. */
struct nucleus_rule : value_rule {
    static constexpr bool by_mass = true;
    float largest; /* value */
    float top_p;
    gumbel_cut from;

    __device__ __forceinline__ uint64_t mass_of(float v) const
    {
        return gumbel_token_mass(gumbel_exp(v - largest));
    }
    __device__ __forceinline__ uint64_t mass(float y) const { return mass_of(values.of(y)); }
    __device__ __forceinline__ bool equal(float y) const { return values.of(y) == from.bound; }
    __device__ __forceinline__ gumbel_wide need(const team_sums &sums) const
    {
        gumbel_wide mass = sums.all.wide();
        if (sums.equal)
            mass += (gumbel_wide)min(sums.equal, (uint64_t)from.tied) * mass_of(from.bound);
        return gumbel_nucleus(top_p, mass);
    }
};

/* A value below which all `alive` tokens together have less than a twentieth of 1 - top_p of the
 * largest token's mass: no nucleus ends there. */
__device__ __forceinline__ float nucleus_floor(float largest, float top_p, uint32_t alive)
{
    float share = gumbel_log((1.0f - top_p) / (float)alive) - 3.0f;
    return largest + fmaxf(share, -GUMBEL_MASS_REACH) - fabsf(largest) * 0x1p-21f;
}

struct team_cut_finder {
    share_source source;
    request_values values;
    team_facts facts;
    float largest; /* value */

    /* The n-th largest value, of those that are not below the floor. A value that n tokens reach
     * bounds the search, where so many are alive. */
    __device__ landing nth(uint64_t n, float floor) const
    {
        uint32_t reached = facts.peaks >= n ? facts.lowest : facts.least;
        float low = fmaxf(values.of(gumbel_of_key(reached)), floor);
        nth_rule rule = {{values, floor}, {n}};
        even_bins bins;
        if (make_bins(bins, low, largest)) {
            key_range guess = guess_nth(source, values, bins, largest, n);
            if (guess.low > guess.high)
                return {false, 0, 0};
            landing end = descend(source, guess, rule).end;
            if (end.reached)
                return end;
        }
        return descend(source, {gumbel_key(low), gumbel_key(largest)}, rule).end;
    }

    /* top_p of what `from` keeps. */
    __device__ gumbel_cut cut_top_p(float top_p, bool exact, gumbel_cut from) const
    {
        float least = fmaxf(from.bound, largest - GUMBEL_MASS_REACH);
        float floor = fmaxf(nucleus_floor(largest, top_p, facts.alive), least);
        nucleus_rule rule = {{values, least}, largest, top_p, from};
        team_landing found = {};
        even_bins bins;
        if (make_bins(bins, floor, largest)) {
            float below =
                floor > from.bound ? (float)facts.alive * gumbel_exp(floor - largest) : 0.0f;
            found =
                descend(source, guess_nucleus(source, values, bins, largest, top_p, below), rule);
        }
        if (!found.end.reached)
            found = descend(source, {gumbel_key(floor), gumbel_key(largest)}, rule);
        float value = gumbel_of_key(found.end.key);
        return gumbel_cut_top_p(exact, value, found.needed, found.end.above, rule.mass_of(value));
    }

    /* The last id that stays, where only the first `tied` equals of the bound do. */
    __device__ int32_t last_of_ties(gumbel_cut cut) const
    {
        if (cut.tied == GUMBEL_TIES_STAY)
            return INT32_MAX;
        tie_rule rule = {{(uint64_t)cut.tied}, values, cut.bound};
        landing last = descend(source, {~(uint32_t)INT32_MAX, ~0u}, rule).end;
        return last.reached ? (int32_t)~last.key : INT32_MAX;
    }
};

/* --------------------------------------------------------------------------- some tokens ---- */

/* Tokens that a nucleus of all tokens of a row may leave for a CTA to end the row with. */
constexpr int kNucleus = 320;

/* Whether a row that candidates alone cannot serve can be served by some tokens and the mass of
 * all: its nucleus is of them. Which are wanted. */
__device__ inline bool can_weigh(const cuda_request_params &p, const request_row &row,
                                 request_wanted &wanted)
{
    const gumbel_rules &r = row.rules;
    bool others = cuts_by_value(r);
    if (p.partials || row.draw.greedy || !(r.top_p < 1.0f) || r.top_k > CUDA_REQUEST_TOP_MAX ||
        (others && !r.joint))
        return false;
    wanted = wanted_of(p, row, row.draw.greedy);
    if (!others)
        wanted = {(uint32_t)max(kNucleus, p.output.num_top), -INFINITY, false};
    return true;
}

/* Whether a row is so flat that kNucleus tokens hardly hold a nucleus: all others could weigh this
 * many times what the largest does. A guess: what it says costs time alone. */
__device__ __forceinline__ bool is_flat(request_values values, const team_facts &facts)
{
    constexpr float most = 500.0f;
    float near = values.of(gumbel_of_key(facts.reached));
    float largest = values.of(gumbel_of_key(facts.highest));
    return (float)facts.alive * gumbel_exp(near - largest) > most;
}

} // namespace

#endif
