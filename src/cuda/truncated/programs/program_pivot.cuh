/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws rows before their program runs, as cluster_pivot.cuh draws before truncation. The program
 * has at most one rule besides TEMPERATURE, and the rule keeps an interval of values around a
 * centre. The winner of a draw from a superset of the kept set is the row's token if the rule keeps
 * it. If the rule removes the winner, it also removes all tokens that are at least as far from the
 * centre, and the winner among the closer tokens is tried next. Sums of floats decide. About one
 * winner in a thousand is within their error of the bound of the interval; the exact sums of
 * program_walk.cuh then serve the row.
 *
 * COST   a pass that draws; for rules that require sums, a pass that computes them; for TYPICAL_P
 *        and TOP_P, a pass that sums the masses of closer tokens. Each pass has a barrier of the
 *        cluster. A removed winner repeats the first pass and the last.
 */
#ifndef GUMBEL_CUDA_PROGRAM_PIVOT_CUH
#define GUMBEL_CUDA_PROGRAM_PIVOT_CUH

#include "cuda/truncated/cluster/pivot_draw.cuh"
#include "cuda/truncated/programs/program_state.cuh"

namespace
{

/* Relative error of a sum of values or of their squares: as kSumError, without errors of terms. */
constexpr float kSpreadError = 0x1p-16f;
/* Values beyond this may be clamped in exact sums (GUMBEL_VALUE_LIMIT). */
constexpr float kSpreadLimit = 0x1p14f;
/* Bounds on two errors: exact sums round distances to multiples of 2^-16, and thresholds are
 * rounded to floats. */
constexpr float kRoundingError = 0x1p-14f, kFloatError = 0x1p-21f;

/* Accepts values whose distance from a centre, relative to the largest value, is below `reach`. */
struct values_near {
    static constexpr bool is_monotone = false;
    float largest, centre, reach;

    __device__ __forceinline__ float find_distance(float value) const
    {
        return gumbel_typical_distance(value, largest, centre);
    }
    __device__ __forceinline__ bool accepts_value(float value) const
    {
        return find_distance(value) < reach;
    }
};

/* Approximate sums over the values of a row, with d = largest - v. The sums are of
 *   first   d for TOP_N_SIGMA; exp(-d) for other rules
 *   second  d^2 for TOP_N_SIGMA; d exp(-d) if the entropy is required; exp(-2 d) for other rules */
struct pivot_facts {
    uint32_t count; /* for TOP_N_SIGMA */
    float first, second;

    static __device__ __forceinline__ pivot_facts empty() { return {0, 0.0f, 0.0f}; }
    __device__ __forceinline__ void join_warp()
    {
        count = __reduce_add_sync(~0u, count);
        first = sum_floats_of_warp(first);
        second = sum_floats_of_warp(second);
    }
};

/* Adds a token's masses. d may be infinite; exp(-d) is 0 for d of 128 or more. */
template <bool entropy> struct mass_facts {
    static __device__ __forceinline__ void add(pivot_facts &own, float d)
    {
        const float mass = pivot_sums::mass_of(-d, 0.0f);
        own.first += mass;
        own.second = fmaf(mass, entropy ? fminf(d, 128.0f) : mass, own.second);
    }
};

struct spread_facts {
    static __device__ __forceinline__ void add(pivot_facts &own, float d)
    {
        const bool finite = d < INFINITY;
        own.count += finite;
        d = finite ? d : 0.0f;
        own.first += d;
        own.second = fmaf(d, d, own.second);
    }
};

template <class Facts>
__device__ __noinline__ pivot_facts sum_pivot_facts(slice_source source, float scale, float largest)
{
    pivot_facts own = pivot_facts::empty();
#pragma unroll 2
    for (int at = 4 * threadIdx.x; at < source.size; at += 4 * kThreads) {
        const float4 y = load_quad(source, at);
        Facts::add(own, largest - y.x * scale);
        Facts::add(own, largest - y.y * scale);
        Facts::add(own, largest - y.z * scale);
        Facts::add(own, largest - y.w * scale);
    }
    return join_cluster(own);
}

/* Approximate masses, relative to the largest token: of all tokens, and of those that are certainly
 * or possibly closer to the centre than a winner. */
struct closer_masses {
    float certain, possible, all;

    static __device__ __forceinline__ closer_masses empty() { return {0.0f, 0.0f, 0.0f}; }
    __device__ __forceinline__ void join_warp()
    {
        certain = sum_floats_of_warp(certain);
        possible = sum_floats_of_warp(possible);
        all = sum_floats_of_warp(all);
    }
};

/* Sums the masses of tokens closer to the centre than the value `winner`. `error` is a bound on the
 * error of the centre. Tokens with a value equal to `winner` are not closer. */
__device__ __noinline__ closer_masses sum_closer(slice_source source, float scale,
                                                 values_near values, float winner, float error)
{
    const float reach = values.find_distance(winner);
    closer_masses own = closer_masses::empty();
#pragma unroll 2
    for (int at = 4 * threadIdx.x; at < source.size; at += 4 * kThreads) {
        const float4 raw = load_quad(source, at);
        const float y[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float v = y[i] * scale, mass = pivot_sums::mass_of(v, values.largest),
                        distance = values.find_distance(v);
            own.all += mass;
            own.certain += distance < reach - 2.0f * error ? mass : 0.0f;
            own.possible += v != winner && distance < reach + 2.0f * error ? mass : 0.0f;
        }
    }
    return join_cluster(own);
}

/* Bounds on how far the threshold of a rule of gumbel_threshold_facts() is below the largest value:
 * tokens up to `certain` below it are kept, tokens `possible` or more below it are removed. If the
 * sums do not determine the threshold, `certain` is negative and `possible` is +inf. */
struct threshold_range {
    float certain, possible;
};

__device__ __forceinline__ threshold_range find_threshold_range(const gumbel_row_program &program,
                                                                gumbel_program_rule rule,
                                                                int required, float largest,
                                                                const pivot_facts &sums)
{
    gumbel_facts facts = {};
    float low, high;
    if (required & GUMBEL_FACT_SPREAD) {
        const float n = (float)sums.count, mean = sums.first / n, square = sums.second / n;
        const float error = 4.0f * kSpreadError * square, variance = square - mean * mean;
        if (!(sums.second < kSpreadLimit * kSpreadLimit && fabsf(largest) < kSpreadLimit))
            return {-1.0f, INFINITY};
        low = program.top_n_sigma * (sqrtf(fmaxf(variance - error, 0.0f)) - kRoundingError);
        high = program.top_n_sigma * (sqrtf(fmaxf(variance, 0.0f) + error) + kRoundingError);
    } else {
        const double units = 0x1p61;
        facts.mass = (gumbel_wide)((double)sums.first * units);
        if (required & GUMBEL_FACT_ENTROPY)
            facts.weighted = (gumbel_wide)((double)sums.second * units * GUMBEL_VALUE_UNITS);
        if (required & GUMBEL_FACT_SQUARED)
            facts.squared = (gumbel_wide)((double)sums.second * units);
        const float distance = gumbel_threshold_distance(&program, rule, &facts);
        const float error = 4.0f * kSumError * (1.0f + sums.second / sums.first) + kRoundingError;
        low = distance - error;
        high = distance + error;
    }
    const float rounding = kFloatError * (fabsf(largest) + high);
    return {low - rounding, high + rounding};
}

/* Whether the rule is decided by the mass of closer tokens, a sum that the cluster exchanges. */
__device__ __forceinline__ bool sums_closer_tokens(gumbel_program_rule rule)
{
    return rule == GUMBEL_PROGRAM_TYPICAL_P || rule == GUMBEL_PROGRAM_TOP_P;
}

/* The row's rule, which is tried on winners and keeps values near `values.centre`. */
struct pivot_rule {
    values_near values;
    float error;           /* of the centre */
    threshold_range range; /* of threshold rules */
};

/* Computes the centre or the threshold of the row's rule, given the largest value. Returns whether
 * the cluster has exchanged sums. For all threads of the cluster. */
__device__ __forceinline__ bool prepare_rule(slice_source source, float scale, float largest,
                                             pivot_rule &rule)
{
    const program_state &state = program_memory();
    const int threshold = gumbel_threshold_facts(state.single);
    const int required =
        state.single == GUMBEL_PROGRAM_TYPICAL_P ? GUMBEL_FACT_ENTROPY : max(threshold, 0);
    pivot_facts sums = {0, 1.0f, 0.0f}; /* without an exchange, the largest token alone */
    if (required)
        sums = required & GUMBEL_FACT_SPREAD ? sum_pivot_facts<spread_facts>(source, scale, largest)
               : required & GUMBEL_FACT_ENTROPY
                   ? sum_pivot_facts<mass_facts<true>>(source, scale, largest)
                   : sum_pivot_facts<mass_facts<false>>(source, scale, largest);
    rule.values = {largest, 0.0f, INFINITY};
    rule.error = 0.0f;
    if (state.single == GUMBEL_PROGRAM_TYPICAL_P) {
        rule.values.centre = -sums.second / sums.first;
        rule.error = 2.0f * kSumError * (1.0f - rule.values.centre) + kRoundingError;
    }
    if (threshold >= 0)
        rule.range = find_threshold_range(state.program, state.single, required, largest, sums);
    return required != 0;
}

/* Determines whether the rule keeps a winner with this value. Sets `reach`, which is greater than
 * the distances of all tokens that the rule may keep if it removes the winner. */
__device__ __forceinline__ pivot_verdict determine_verdict(slice_source source, float scale,
                                                           pivot_rule &rule, float value)
{
    const program_state &state = program_memory();
    const float distance = rule.values.find_distance(value);
    if (state.single == GUMBEL_PROGRAM_END)
        return PIVOT_KEPT;
    if (!sums_closer_tokens(state.single)) {
        rule.values.reach = rule.range.possible;
        return distance == 0.0f || distance <= rule.range.certain ? PIVOT_KEPT
               : distance >= rule.range.possible                  ? PIVOT_TRUNCATED
                                                                  : PIVOT_UNSURE;
    }
    const bool typical = state.single == GUMBEL_PROGRAM_TYPICAL_P;
    const float rounding = kFloatError * (distance + fabsf(rule.values.centre));
    const closer_masses closer =
        sum_closer(source, scale, rule.values, value, rule.error + rounding);
    const float needed = (typical ? state.program.typical_p : state.program.top_p) * closer.all;
    rule.values.reach = distance;
    return closer.possible < needed * (1.0f - kSumError)   ? PIVOT_KEPT
           : closer.certain >= needed * (1.0f + kSumError) ? PIVOT_TRUNCATED
                                                           : PIVOT_UNSURE;
}

/* Whether pivots can serve the row. */
__device__ __forceinline__ bool can_serve_program_by_pivots(const cuda_truncated_params &p)
{
    return program_memory().has_single && pivots_apply(p, shared_state().row);
}

/* Serves row b; returns false if another path must serve it. By all threads of the cluster, after
 * reset_offers() and a barrier of the cluster. */
__device__ __noinline__ bool serve_program_by_pivots(const cuda_truncated_params &p,
                                                     slice_source source, int64_t b)
{
    const truncated_row &row = shared_state().row;
    const logit_values values = {row.draw.inverse_temperature, program_memory().before};
    pivot_rule rule = {{0.0f, 0.0f, INFINITY}, 0.0f, {-1.0f, INFINITY}};
    bool removed = true;
#pragma unroll 1
    for (int round = 0; removed && round < kPivots; round++) {
        const pivot_draw found = draw_accepted(source, values, rule.values);
        if (found.flags || row.flags || found.offered > kOffers || found.best.id < 0)
            return false;
        const float value = value_of_winner(source, values, found.best);
        bool read = !values.before; /* no CTA still reads the winner's value in another's memory */
        if (round == 0)
            read |= prepare_rule(source, values.scale(),
                                 values.to_value(gumbel_value_of_key(found.highest)), rule);
        const pivot_verdict verdict = determine_verdict(source, values.scale(), rule, value);
        if (verdict == PIVOT_KEPT)
            write_winner(p, b, found.best);
        if (threadIdx.x == 0)
            reset_offers();
        if (read || sums_closer_tokens(program_memory().single))
            __syncthreads();
        else
            sync_cluster();
        if (verdict == PIVOT_UNSURE)
            return false;
        removed = verdict == PIVOT_TRUNCATED;
    }
    return !removed;
}

} // namespace

#endif
