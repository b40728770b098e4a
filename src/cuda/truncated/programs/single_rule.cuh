/* SPDX-License-Identifier: Apache-2.0
 *
 * The rule of a program that has at most one besides TEMPERATURE, and keeps an interval of values
 * around a centre: whether it keeps the winner of a draw. Sums of floats decide, with bounds on
 * their errors; where these do not suffice, about one winner in a thousand, the verdict is
 * PIVOT_UNSURE.
 */
#ifndef GUMBEL_CUDA_SINGLE_RULE_CUH
#define GUMBEL_CUDA_SINGLE_RULE_CUH

#include "core/row_program.h"
#include "cuda/truncated/row/pivot.cuh"
#include "cuda/truncated/row/pivot_filters.cuh"

namespace
{

/* Prefetches the parameters that gumbel_problem_program() reads, one per lane of a whole warp; its
 * thread then reads them one after the other. */
__device__ __forceinline__ void prefetch_program(const gumbel_problem &q, int64_t b)
{
    const gumbel_programs &r = q.programs;
    const gumbel_truncation &t = q.truncation;
    const int lane = threadIdx.x % 32;
    const int64_t slot = gumbel_problem_slot(&q, b);
    const void *data = nullptr;
    int64_t stride = 0;
    int to = 0;
    auto assign = [&](const auto &rows) {
        data = lane == to ? rows.data : data;
        stride = lane == to ? rows.stride * (int64_t)sizeof *rows.data : stride;
        to++;
    };
    assign(r.program), assign(r.min_keep), assign(t.min_p), assign(t.top_k), assign(t.top_p);
    assign(q.sampling.temperature), assign(r.temperature_range), assign(r.temperature_exponent);
    assign(r.typical_p), assign(r.top_n_sigma), assign(r.epsilon), assign(r.eta), assign(r.top_a);
    assign(r.surprise), assign(r.xtc_probability), assign(r.xtc_threshold);
    assign(r.smoothing_factor), assign(r.smoothing_curve), assign(r.adaptive_target);
    if (data)
        ptx_prefetch_line_to_l1((const char *)data + slot * stride);
}

/* ----------------------------------------------------------------------------------- rule ---- */

/* The only rule of a program besides TEMPERATURE that is on. */
struct single_rule {
    gumbel_program_rule rule; /* GUMBEL_PROGRAM_END if there is none */
    bool before;              /* the rule comes before TEMPERATURE */
    bool is_single;           /* there is no second rule, and floats can decide by the first */
};

/* Smallest typical_p and top_p of rows that are drawn before their rule: a row takes 1 - ln(p)
 * draws. */
constexpr float kProgramPivotMass = 0.5f;

__device__ __forceinline__ single_rule find_single_rule(const gumbel_row_program &program)
{
    bool scaled = false;
    single_rule single = {GUMBEL_PROGRAM_END, false,
                          program.min_keep == 1 && program.temperature_range == 0.0f};
#pragma unroll 1
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH && program.rules[i] != GUMBEL_PROGRAM_END; i++) {
        const gumbel_program_rule rule = (gumbel_program_rule)program.rules[i];
        scaled |= rule == GUMBEL_PROGRAM_TEMPERATURE;
        if (rule == GUMBEL_PROGRAM_TEMPERATURE || !gumbel_rule_is_on(&program, rule))
            continue;
        single.is_single &=
            single.rule == GUMBEL_PROGRAM_END &&
            (gumbel_threshold_facts(rule) >= 0 ||
             (rule == GUMBEL_PROGRAM_TYPICAL_P && program.typical_p >= kProgramPivotMass) ||
             (rule == GUMBEL_PROGRAM_TOP_P && program.top_p >= kProgramPivotMass &&
              !program.exact));
        single.rule = rule;
        single.before = !scaled;
    }
    return single;
}

/* The sums that the rule requires; 0: the largest value suffices. */
__device__ __forceinline__ int facts_of_rule(gumbel_program_rule rule)
{
    return rule == GUMBEL_PROGRAM_TYPICAL_P ? GUMBEL_FACT_ENTROPY
                                            : max(gumbel_threshold_facts(rule), 0);
}

/* Whether the mass of closer tokens decides, a sum of its own for each winner. */
__device__ __forceinline__ bool sums_closer_tokens(gumbel_program_rule rule)
{
    return rule == GUMBEL_PROGRAM_TYPICAL_P || rule == GUMBEL_PROGRAM_TOP_P;
}

/* ----------------------------------------------------------------------------------- sums ---- */

/* Approximate sums over the values v of a row, with d = reference - v. The sums are of
 *   first   d for TOP_N_SIGMA; exp(-d) for other rules
 *   second  d^2 for TOP_N_SIGMA; d exp(-d) if the entropy is required; exp(-2 d) for other rules */
struct pivot_facts {
    uint32_t count; /* for TOP_N_SIGMA */
    float first, second;

    static __device__ __forceinline__ pivot_facts empty() { return {0, 0.0f, 0.0f}; }
    __device__ __forceinline__ void join(const pivot_facts &other)
    {
        count += other.count;
        first += other.first;
        second += other.second;
    }
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

/* Makes the sums of masses relative to the largest value, `shift` above their reference. They are
 * NaN or infinite if the shift is about 88 or more. */
__device__ __forceinline__ pivot_facts rebase_facts(int required, pivot_facts sums, float shift)
{
    const float factor = gumbel_exp(-shift);
    if (required & GUMBEL_FACT_SPREAD)
        return sums;
    sums.second = required & GUMBEL_FACT_ENTROPY
                      ? fmaxf(factor * fmaf(shift, sums.first, sums.second), 0.0f)
                      : factor * factor * sums.second;
    sums.first *= factor;
    return sums;
}

/* Approximate masses, relative to the largest token: of all tokens, and of those that are certainly
 * or possibly closer to the centre than a winner. */
struct closer_masses {
    float certain, possible, all;

    static __device__ __forceinline__ closer_masses empty() { return {0.0f, 0.0f, 0.0f}; }
    __device__ __forceinline__ void join(const closer_masses &other)
    {
        certain += other.certain;
        possible += other.possible;
        all += other.all;
    }
    __device__ __forceinline__ void join_warp()
    {
        certain = sum_floats_of_warp(certain);
        possible = sum_floats_of_warp(possible);
        all = sum_floats_of_warp(all);
    }

    /* Adds a token with value v. The winner has the value `winner` and the distance `reach`;
     * `error` bounds the error of the centre. Tokens with the winner's value are not closer. */
    __device__ __forceinline__ void add(const values_near &values, float v, float winner,
                                        float reach, float error)
    {
        const float mass = pivot_sums::mass_of(v, values.largest),
                    distance = values.find_distance(v);
        all += mass;
        certain += distance < reach - 2.0f * error ? mass : 0.0f;
        possible += v != winner && distance < reach + 2.0f * error ? mass : 0.0f;
    }
};

/* --------------------------------------------------------------------------------- bounds ---- */

/* Relative error of a sum of values or of their squares: as kSumError, without errors of terms. */
constexpr float kSpreadError = 0x1p-16f;
/* Values beyond this may be clamped in exact sums (GUMBEL_VALUE_LIMIT). */
constexpr float kSpreadLimit = 0x1p14f;
/* Bounds on two errors: exact sums round distances to multiples of 2^-16, and thresholds are
 * rounded to floats. */
constexpr float kRoundingError = 0x1p-14f, kFloatError = 0x1p-21f;

/* Bounds on how far the threshold of a rule of gumbel_threshold_facts() is below the largest value:
 * tokens up to `certain` below it are kept, tokens `possible` or more below it are removed. If the
 * sums do not determine the threshold, `certain` is negative and `possible` is +inf. */
struct threshold_range {
    float certain, possible;
};

/* `shift` is how far the sums' reference was below the largest value. */
__device__ __forceinline__ threshold_range find_threshold_range(const gumbel_row_program &program,
                                                                gumbel_program_rule rule,
                                                                int required, float largest,
                                                                const pivot_facts &sums,
                                                                float shift)
{
    gumbel_facts facts = {};
    float low, high;
    if (required & GUMBEL_FACT_SPREAD) {
        const float n = (float)sums.count, mean = sums.first / n, square = sums.second / n;
        const float error = 4.0f * kSpreadError * square, variance = square - mean * mean;
        /* Each d is then at most half the limit. */
        if (!(4.0f * sums.second < kSpreadLimit * kSpreadLimit && fabsf(largest) < kSpreadLimit))
            return {-1.0f, INFINITY};
        low = program.top_n_sigma * (sqrtf(fmaxf(variance - error, 0.0f)) - kRoundingError);
        high = program.top_n_sigma * (sqrtf(fmaxf(variance, 0.0f) + error) + kRoundingError);
    } else {
        const double units = 0x1p61;
        if (!(sums.first > 0.0f && sums.first < 0x1p40f && sums.second < 0x1p40f))
            return {-1.0f, INFINITY};
        facts.mass = (gumbel_wide)((double)sums.first * units);
        if (required & GUMBEL_FACT_ENTROPY)
            facts.weighted = (gumbel_wide)((double)sums.second * units * GUMBEL_VALUE_UNITS);
        if (required & GUMBEL_FACT_SQUARED)
            facts.squared = (gumbel_wide)((double)sums.second * units);
        const float distance = gumbel_threshold_distance(&program, rule, &facts);
        const float error =
            4.0f * kSumError * (1.0f + shift + sums.second / sums.first) + kRoundingError;
        low = distance - error;
        high = distance + error;
    }
    const float rounding = kFloatError * (fabsf(largest) + high);
    return {low - rounding, high + rounding};
}

/* Description of the values that the row's rule keeps: those near `values.centre`. */
struct kept_values {
    values_near values;
    float error;           /* of the centre */
    threshold_range range; /* of threshold rules */
};

/* Computes the centre or the threshold of a rule, from the largest value and sums relative to
 * it. */
__device__ __forceinline__ kept_values describe_kept(const gumbel_row_program &program,
                                                     gumbel_program_rule rule, float largest,
                                                     const pivot_facts &sums, float shift)
{
    kept_values kept = {{largest, 0.0f, INFINITY}, 0.0f, {-1.0f, INFINITY}};
    if (rule == GUMBEL_PROGRAM_TYPICAL_P) {
        kept.values.centre = -sums.second / sums.first;
        kept.error = 2.0f * kSumError * (1.0f + shift - kept.values.centre) + kRoundingError;
    } else if (gumbel_threshold_facts(rule) >= 0) {
        kept.range = find_threshold_range(program, rule, facts_of_rule(rule), largest, sums, shift);
    }
    return kept;
}

/* ------------------------------------------------------------------------------- verdicts ---- */

/* Determines whether a threshold rule keeps a winner. Sets `reach`, which is greater than the
 * distances of all tokens that the rule may keep if it removes the winner. */
__device__ __forceinline__ pivot_verdict determine_threshold_verdict(kept_values &kept,
                                                                     float winner)
{
    const float distance = kept.values.find_distance(winner);
    kept.values.reach = kept.range.possible;
    return distance == 0.0f || distance <= kept.range.certain ? PIVOT_KEPT
           : distance >= kept.range.possible                  ? PIVOT_TRUNCATED
                                                              : PIVOT_UNSURE;
}

/* The error of distances from the centre, for a winner. */
__device__ __forceinline__ float error_of_distance(const kept_values &kept, float winner)
{
    const float distance = kept.values.find_distance(winner);
    return kept.error + kFloatError * (distance + fabsf(kept.values.centre));
}

/* As determine_threshold_verdict(), for rules that the mass of closer tokens decides. If the centre
 * is not known, neither is the verdict. */
__device__ __forceinline__ pivot_verdict determine_mass_verdict(const gumbel_row_program &program,
                                                                gumbel_program_rule rule,
                                                                kept_values &kept,
                                                                const closer_masses &closer,
                                                                float winner)
{
    const float p = rule == GUMBEL_PROGRAM_TYPICAL_P ? program.typical_p : program.top_p;
    const float needed = p * closer.all;
    kept.values.reach = kept.values.find_distance(winner);
    if (!(kept.error < INFINITY))
        return PIVOT_UNSURE;
    return closer.possible < needed * (1.0f - kSumError)   ? PIVOT_KEPT
           : closer.certain >= needed * (1.0f + kSumError) ? PIVOT_TRUNCATED
                                                           : PIVOT_UNSURE;
}

} // namespace

#endif
