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
    /* Values below it are removed, whatever is stored. Ties that a rule breaks by id are removed at
     * once. */
    float bound = -FLT_MAX;
    float factor = 1.0f; /* z = value * factor, after the rules */
    bool has_xtc = false;
    float xtc_value = 0.0f; /* the smallest value that XTC's threshold found; changed with values */

    __device__ __forceinline__ cluster_kept_set_finder make_finder() const
    {
        row_facts facts = row_facts::empty();
        facts.alive = alive;
        facts.highest = gumbel_key_of_value(largest);
        facts.lowest = gumbel_key_of_value(fmaxf(lowest, bound));
        return {source, {1.0f, false}, facts, largest};
    }

    __device__ __forceinline__ void set_facts(const row_facts &facts)
    {
        largest = gumbel_value_of_key(facts.highest);
        lowest = gumbel_value_of_key(facts.lowest);
        alive = facts.alive;
    }

    /* The looser one of a rule's cutoff and the cutoff that min_keep allows. */
    __device__ gumbel_cutoff apply_min_keep(gumbel_cutoff cutoff) const
    {
        if (program.min_keep == 1)
            return cutoff;
        const descent_result nth = make_finder().find_nth((uint64_t)program.min_keep, bound);
        const float value = gumbel_value_of_key(nth.key);
        if (!nth.reached)
            return {-FLT_MAX, GUMBEL_TIES_ALL_KEPT};
        const int64_t tied = program.min_keep - (int64_t)nth.above;
        if (value < cutoff.bound && cutoff.tied == GUMBEL_TIES_ALL_KEPT)
            return {value, GUMBEL_TIES_ALL_KEPT};
        if (value < cutoff.bound || (value == cutoff.bound && cutoff.tied < tied))
            return {value, tied};
        return cutoff;
    }

    __device__ void remove_below(gumbel_cutoff cutoff)
    {
        const kept_set kept = {cutoff.bound, make_finder().find_last_tie(cutoff)};
        if (kept.last_id != INT32_MAX)
            remove_others(source, kept);
        bound = fmaxf(bound, cutoff.bound);
    }

    __device__ void run_threshold(gumbel_program_rule rule)
    {
        const int required = gumbel_threshold_facts(rule);
        gumbel_facts facts = {};
        if (required)
            facts = sum_facts(source, bound, required, largest);
        const float distance = gumbel_threshold_distance(&program, rule, &facts);
        remove_below(
            apply_min_keep({gumbel_threshold_below(largest, distance), GUMBEL_TIES_ALL_KEPT}));
    }

    __device__ void run_top_k()
    {
        const descent_result k = make_finder().find_nth((uint64_t)program.top_k, bound);
        if (k.reached)
            remove_below({gumbel_value_of_key(k.key),
                          program.exact ? program.top_k - (int64_t)k.above : GUMBEL_TIES_ALL_KEPT});
    }

    __device__ void run_top_p()
    {
        const gumbel_cutoff all = {bound, GUMBEL_TIES_ALL_KEPT};
        remove_below(apply_min_keep(make_finder().find_nucleus(program.top_p, program.exact, all)));
    }

    __device__ void run_typical_p()
    {
        const gumbel_facts facts = sum_facts(source, bound, GUMBEL_FACT_ENTROPY, largest);
        const float centre = gumbel_log_mass(facts.mass) - gumbel_facts_entropy(&facts);
        const distance_rule distances = {bound, largest, centre};
        const float farthest = fmaxf(gumbel_typical_distance(fmaxf(lowest, bound), largest, centre),
                                     gumbel_typical_distance(largest, largest, centre));
        const gumbel_wide needed = gumbel_nucleus_mass(program.typical_p, facts.mass);
        float reach =
            find_reach(source, distance_mass_rule{distances, needed}, farthest, facts.mass);
        if (program.min_keep > 1)
            reach = fmaxf(reach,
                          find_reach(source,
                                     distance_count_rule{distances, (gumbel_wide)program.min_keep},
                                     farthest, (gumbel_wide)facts.count));
        remove_atypical(source, distances, reach);
        set_facts(remove_and_scan(source, bound, 1.0f));
    }

    /* `last`: no rule follows. */
    __device__ void run_temperature(bool last)
    {
        float temperature = program.temperature;
        if (program.temperature_range > 0.0f) {
            const gumbel_facts facts = sum_facts(source, bound, GUMBEL_FACT_ENTROPY, largest);
            temperature = gumbel_dynamic_temperature(&facts, temperature, program.temperature_range,
                                                     program.temperature_exponent);
        }
        const float inverse = fminf(1.0f / temperature, GUMBEL_INVERSE_TEMPERATURE_HIGHEST);
        if (last && !has_xtc) {
            factor = inverse;
            return;
        }
        scale_values(source, bound, inverse);
        largest *= inverse;
        lowest = fmaxf(lowest * inverse, -FLT_MAX);
        bound = fmaxf(bound * inverse, -FLT_MAX);
        xtc_value *= inverse;
    }

    __device__ void run_smoothing()
    {
        smooth_values(source, bound, largest, program.smoothing_factor, program.smoothing_curve);
        bound = lowest = -FLT_MAX;
    }

    /* The last rule; `largest` is then an upper bound. */
    __device__ void run_adaptive_p()
    {
        const gumbel_facts facts = sum_facts(source, bound, GUMBEL_FACT_MASS, largest);
        adapt_values(source, bound, largest, gumbel_invert_mass(facts.mass),
                     program.adaptive_target);
        bound = lowest = -FLT_MAX;
        largest = 5.0f;
    }

    /* Finds the tokens that XTC may exclude; exclude_top_choices() excludes them. */
    __device__ void run_xtc()
    {
        const gumbel_facts facts = sum_facts(source, bound, GUMBEL_FACT_MASS, largest);
        const float distance =
            -(gumbel_log_mass(facts.mass) + gumbel_log_probability(program.xtc_threshold));
        const float from = fmaxf(gumbel_threshold_below(largest, distance), bound);
        has_xtc = find_smallest_from(source, from, xtc_value) >= 2;
    }

    __device__ void exclude_top_choices()
    {
        const excluded_set excluded = find_excluded(source, xtc_value, program.exact);
        const exclusion_sums sums = sum_exclusion(source, bound, excluded, largest);
        if (sums.excluded.count == 0 || sums.remaining.count < program.min_keep ||
            excludes_listed(q, source, excluded, b))
            return;
        remove_and_scan(source, bound, 1.0f); /* before values fall below it */
        bound = -FLT_MAX;
        shift_excluded(source, excluded,
                       gumbel_xtc_shift(program.xtc_probability, sums.excluded.mass,
                                        sums.remaining.mass, largest - xtc_value));
    }

    __device__ void run_rule(gumbel_program_rule rule, bool last)
    {
        switch (rule) {
        case GUMBEL_PROGRAM_TEMPERATURE:
            return run_temperature(last);
        case GUMBEL_PROGRAM_SMOOTHING:
            return run_smoothing();
        case GUMBEL_PROGRAM_ADAPTIVE_P:
            return run_adaptive_p();
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

    /* The number of rules up to the last one that is on. */
    __device__ int count_rules() const
    {
        int count = 0;
        for (int i = 0; i < GUMBEL_PROGRAM_LENGTH; i++)
            if (gumbel_rule_is_on(&program, (gumbel_program_rule)program.rules[i]))
                count = i + 1;
        return count;
    }

    /* Runs the rules: z is value * factor of the values from `bound` on, and -inf for others. */
    __device__ void run_rules()
    {
        const int count = count_rules();
#pragma unroll 1
        for (int i = 0; i < count; i++) {
            const gumbel_program_rule rule = (gumbel_program_rule)program.rules[i];
            if (gumbel_rule_is_on(&program, rule))
                run_rule(rule, i == count - 1);
            if (!isfinite(largest))
                return; /* a temperature made the values infinite */
        }
        if (has_xtc)
            exclude_top_choices();
    }
};

} // namespace

#endif
