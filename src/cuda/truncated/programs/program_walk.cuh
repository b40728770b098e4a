/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the program of a row, rule by rule, on the slices of a cluster (docs/maths.md, section 15).
 */
#ifndef GUMBEL_CUDA_PROGRAM_WALK_CUH
#define GUMBEL_CUDA_PROGRAM_WALK_CUH

#include "cuda/truncated/programs/program_sums.cuh"

namespace
{

/* A row that runs its program; all threads of the cluster hold equal copies. */
struct program_walk {
    const gumbel_problem &q;
    const gumbel_row_program &program;
    slice_source source;
    int64_t b;
    float largest;  /* of the values */
    float lowest;   /* a lower bound on the values; finite */
    uint32_t alive; /* upper bound on the number of tokens */
    bool has_xtc = false;
    float xtc_value = 0.0f; /* the smallest value that XTC's threshold found; changed with values */

    __device__ __forceinline__ cluster_kept_set_finder make_finder() const
    {
        row_facts facts = row_facts::empty();
        facts.alive = alive;
        facts.highest = gumbel_key_of_value(largest);
        facts.lowest = gumbel_key_of_value(lowest);
        return {source, {1.0f, false}, facts, largest};
    }

    /* Removes the tokens below a cutoff, or below the looser one that min_keep allows. */
    __device__ void remove_below(gumbel_cutoff cutoff, bool limits)
    {
        const cluster_kept_set_finder finder = make_finder();
        if (limits && program.min_keep > 1) {
            const descent_result nth = finder.find_nth((uint64_t)program.min_keep, -FLT_MAX);
            const float value = gumbel_value_of_key(nth.key);
            if (!nth.reached || value < cutoff.bound)
                cutoff = {nth.reached ? value : -FLT_MAX, GUMBEL_TIES_ALL_KEPT};
            else if (value == cutoff.bound)
                cutoff.tied = max(cutoff.tied, program.min_keep - (int64_t)nth.above);
        }
        remove_others(source, {cutoff.bound, finder.find_last_tie(cutoff)});
        lowest = fmaxf(lowest, cutoff.bound);
    }

    __device__ void run_threshold(gumbel_program_rule rule)
    {
        const int required = gumbel_threshold_facts(rule);
        gumbel_facts facts = {};
        if (required)
            facts = sum_facts(source, required, largest);
        const float distance = gumbel_threshold_distance(&program, rule, &facts);
        remove_below({gumbel_threshold_below(largest, distance), GUMBEL_TIES_ALL_KEPT}, true);
    }

    __device__ void run_top_k()
    {
        const descent_result k = make_finder().find_nth((uint64_t)program.top_k, -FLT_MAX);
        if (k.reached)
            remove_below({gumbel_value_of_key(k.key),
                          program.exact ? program.top_k - (int64_t)k.above : GUMBEL_TIES_ALL_KEPT},
                         false);
    }

    __device__ void run_top_p()
    {
        const gumbel_cutoff all = {-FLT_MAX, GUMBEL_TIES_ALL_KEPT};
        remove_below(make_finder().find_nucleus(program.top_p, program.exact, all), true);
    }

    __device__ void run_typical_p()
    {
        const gumbel_facts facts = sum_facts(source, GUMBEL_FACT_ENTROPY, largest);
        const float centre = gumbel_log_mass(facts.mass) - gumbel_facts_entropy(&facts);
        const distance_rule distances = {largest, centre};
        float reach = find_reach(source, distance_mass_rule{distances, program.typical_p});
        if (program.min_keep > 1)
            reach = fmaxf(reach, find_reach(source, distance_count_rule{
                                                        distances, (uint64_t)program.min_keep}));
        remove_atypical(source, largest, centre, reach);
        largest = find_largest(source);
    }

    __device__ void run_temperature()
    {
        float temperature = program.temperature;
        if (program.temperature_range > 0.0f) {
            const gumbel_facts facts = sum_facts(source, GUMBEL_FACT_ENTROPY, largest);
            temperature = gumbel_dynamic_temperature(&facts, temperature, program.temperature_range,
                                                     program.temperature_exponent);
        }
        const float factor = fminf(1.0f / temperature, GUMBEL_INVERSE_TEMPERATURE_HIGHEST);
        scale_values(source, factor);
        largest *= factor;
        lowest = fmaxf(lowest * factor, -FLT_MAX);
        xtc_value *= factor;
    }

    __device__ void run_smoothing()
    {
        smooth_values(source, largest, program.smoothing_factor, program.smoothing_curve);
        lowest = -FLT_MAX;
    }

    /* Finds the tokens that XTC may exclude; exclude_top_choices() excludes them. */
    __device__ void run_xtc()
    {
        const gumbel_facts facts = sum_facts(source, GUMBEL_FACT_MASS, largest);
        const float distance =
            -(gumbel_log_mass(facts.mass) + gumbel_log_probability(program.xtc_threshold));
        has_xtc =
            find_smallest_from(source, gumbel_threshold_below(largest, distance), xtc_value) >= 2;
    }

    __device__ void exclude_top_choices()
    {
        const excluded_set excluded = find_excluded(source, xtc_value, program.exact);
        const gumbel_facts facts = sum_facts(source, GUMBEL_FACT_MASS, largest);
        const gumbel_facts out = sum_excluded(source, excluded, largest);
        const bool skips =
            out.count == 0 || out.mass >= facts.mass || facts.count - out.count < program.min_keep;
        if (skips || excludes_listed(q, source, excluded, b))
            return;
        shift_excluded(source, excluded,
                       gumbel_xtc_shift(program.xtc_probability, out.mass, facts.mass));
    }

    __device__ void run_rule(gumbel_program_rule rule)
    {
        switch (rule) {
        case GUMBEL_PROGRAM_TEMPERATURE:
            return run_temperature();
        case GUMBEL_PROGRAM_SMOOTHING:
            return run_smoothing();
        case GUMBEL_PROGRAM_TOP_K:
            return run_top_k();
        case GUMBEL_PROGRAM_TOP_P:
            return run_top_p();
        case GUMBEL_PROGRAM_TYPICAL_P:
            return run_typical_p();
        case GUMBEL_PROGRAM_XTC:
            return run_xtc();
        default:
            return run_threshold(rule);
        }
    }

    /* Replaces y by z, -inf for removed tokens. */
    __device__ void run_rules()
    {
#pragma unroll 1
        for (int i = 0; i < GUMBEL_PROGRAM_LENGTH; i++) {
            const gumbel_program_rule rule = (gumbel_program_rule)program.rules[i];
            if (gumbel_rule_is_on(&program, rule))
                run_rule(rule);
            if (!isfinite(largest))
                return; /* a temperature made the values infinite */
        }
        if (has_xtc)
            exclude_top_choices();
    }
};

} // namespace

#endif
