/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the program of a row on a list of at most kShortlist tokens, by one CTA (docs/maths.md,
 * section 15). The tokens are sorted: larger values first, then lower ids. No rule but ADAPTIVE_P,
 * the last one, changes that order, and each one keeps a range of it: a threshold, TOP_K or TOP_P
 * moves its end, TYPICAL_P and XTC also its beginning.
 *
 * A row runs through this code once, usually with 50 to 100 tokens, so one warp runs all rules
 * without a barrier, and all of its lanes hold equal copies of the range.
 */
#ifndef GUMBEL_CUDA_PROGRAM_LIST_CUH
#define GUMBEL_CUDA_PROGRAM_LIST_CUH

#include "cuda/truncated/few/shortlist.cuh"
#include "cuda/truncated/programs/program_state.cuh"

namespace
{

/* ------------------------------------------------------------ tokens by their sorted place ---- */

/* Values are in the memory of scores, which are computed later. */
__device__ __forceinline__ float &value_at(int place) { return shortlist_memory().scores[place]; }

__device__ __forceinline__ int32_t id_at(int place)
{
    return shared_state().scratch.list[shortlist_memory().order[place].token].id;
}

/* The mass of the tokens before a place, after sum_masses_before(); high halves are in the memory
 * of keys. */
__device__ __forceinline__ gumbel_wide mass_before(int place)
{
    return (gumbel_wide)shortlist_memory().keys[place] << 64 | shortlist_memory().masses[place];
}

/* Sums the masses of the tokens in [begin, end) that come before each of them; returns the mass of
 * all. By a warp; each lane has neighbouring tokens. */
__device__ __noinline__ gumbel_wide sum_masses_before(int begin, int end)
{
    const int lane = threadIdx.x % 32, each = (end - begin + 31) / 32;
    const int first = min(begin + each * lane, end), last = min(first + each, end);
    const float largest = value_at(begin);
    shortlist_mass own = {{0, 0, 0}}, all, before;
#pragma unroll 1
    for (int at = first; at < last; at++) {
        const uint64_t mass = gumbel_token_mass(gumbel_exp(value_at(at) - largest));
        own.add(mass);
        shortlist_memory().masses[at] = mass;
    }
#pragma unroll
    for (int i = 0; i < 3; i++) {
        uint32_t upto = own.digits[i];
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const uint32_t below = __shfl_up_sync(~0u, upto, step, 32);
            upto += lane >= step ? below : 0;
        }
        before.digits[i] = upto - own.digits[i];
        all.digits[i] = __shfl_sync(~0u, upto, 31);
    }
#pragma unroll 1
    for (int at = first; at < last; at++) {
        const uint64_t mass = shortlist_memory().masses[at];
        const gumbel_wide sum = before.value();
        shortlist_memory().keys[at] = (uint64_t)(sum >> 64);
        shortlist_memory().masses[at] = (uint64_t)sum;
        before.add(mass);
    }
    __syncwarp();
    return all.value();
}

/* The sum of the masses of the tokens in [begin, end), relative to the first one. By a warp. */
__device__ __noinline__ gumbel_wide sum_masses(int begin, int end)
{
    const float largest = value_at(begin);
    gumbel_wide own = 0;
#pragma unroll 1
    for (int at = begin + (int)threadIdx.x % 32; at < end; at += 32)
        own += gumbel_token_mass(gumbel_exp(value_at(at) - largest));
    return sum_wide_of_warp(own);
}

/* Puts tokens of [begin, end) with equal values in the order of their ids, by a warp. Different
 * values have become equal, which is rare. */
__device__ __noinline__ void sort_ties(int begin, int end)
{
    shortlist_place *order = shortlist_memory().order;
    uint64_t *sorted = shortlist_memory().keys;
#pragma unroll 1
    for (int at = begin + (int)threadIdx.x % 32; at < end; at += 32) {
        const float v = value_at(at);
        const int32_t id = id_at(at);
        int place = at;
        while (place > begin && value_at(place - 1) == v)
            place--;
        for (int other = place; other < end && value_at(other) == v; other++)
            place += id_at(other) < id;
        sorted[place] = (uint64_t)order[at].token;
    }
    __syncwarp();
#pragma unroll 1
    for (int at = begin + (int)threadIdx.x % 32; at < end; at += 32)
        order[at].token = (int)sorted[at];
    __syncwarp();
}

/* ---------------------------------------------------------------------------------- rules ---- */

/* A list that runs its row's program, by a warp. */
struct program_list {
    const gumbel_row_program &program;
    int64_t b;
    int begin, end; /* of the tokens that remain */
    bool has_xtc = false;
    float xtc_value = 0.0f; /* the smallest value that XTC's threshold found; changed with values */

    /* The first place from `from` on at which holds() is false. */
    template <class F> __device__ __forceinline__ int find_end(int from, F holds) const
    {
        uint32_t found = 0;
#pragma unroll 1
        for (int at = from + (int)threadIdx.x % 32; at < end; at += 32)
            found += holds(value_at(at));
        return from + (int)__reduce_add_sync(~0u, found);
    }

    __device__ __forceinline__ int find_end_of(float bound) const
    {
        return find_end(begin, [=](float v) { return v >= bound; });
    }

    __device__ __forceinline__ gumbel_facts sum_facts(int required) const
    {
        const float largest = value_at(begin);
        gumbel_facts own = {};
#pragma unroll 1
        for (int at = begin + (int)threadIdx.x % 32; at < end; at += 32)
            add_to_facts(own, required, value_at(at), largest);
        const fact_sums sums = pack_facts(own, required);
        return unpack_facts({sum_wide_of_warp(sums.first), sum_wide_of_warp(sums.second)},
                            end - begin, required);
    }

    /* Removes the tokens from `place` on, which is past `begin`, as far as min_keep allows.
     * by_id: of tokens with equal values, only the first may stay. */
    __device__ void remove_from(int place, bool by_id)
    {
        const int64_t least = program.min_keep;
        if (place - begin >= least)
            end = place;
        else if (end - begin > least)
            end = by_id ? begin + (int)least : find_end_of(value_at(begin + (int)least - 1));
    }

    __device__ void run_top_k()
    {
        if (program.top_k >= end - begin)
            return;
        const int place = begin + (int)program.top_k;
        end = program.exact ? place : find_end_of(value_at(place - 1));
    }

    __device__ void run_top_p()
    {
        const gumbel_wide needed =
            gumbel_nucleus_mass(program.top_p, sum_masses_before(begin, end));
        uint32_t found = 0;
#pragma unroll 1
        for (int at = begin + (int)threadIdx.x % 32; at < end; at += 32)
            found += mass_before(at) < needed;
        const int place = begin + (int)__reduce_add_sync(~0u, found);
        remove_from(program.exact ? place : find_end_of(value_at(place - 1)), program.exact);
    }

    /* Tokens by distance: x = v - largest - centre falls along the order, so the tokens within a
     * distance are a range around `middle`, where x becomes negative. The range that a token's
     * own distance spans is found by bisection on both sides. */
    __device__ void run_typical_p(const gumbel_facts &facts)
    {
        const float largest = value_at(begin);
        const float centre = gumbel_log_mass(facts.mass) - gumbel_facts_entropy(&facts);
        const gumbel_wide needed = gumbel_nucleus_mass(program.typical_p, facts.mass);
        const int middle = find_end(begin, [=](float v) { return (v - largest) - centre >= 0.0f; });
        uint32_t reach = gumbel_bits_of(INFINITY);
        sum_masses_before(begin, end);
#pragma unroll 1
        for (int at = begin + (int)threadIdx.x % 32; at < end; at += 32) {
            const float own = gumbel_typical_distance(value_at(at), largest, centre);
            int from = begin, to = middle;
            while (from < to) {
                const int half = (from + to) / 2;
                const bool far = gumbel_typical_distance(value_at(half), largest, centre) > own;
                from = far ? half + 1 : from;
                to = far ? to : half;
            }
            int past = middle, most = end;
            while (past < most) {
                const int half = (past + most) / 2;
                const bool far = gumbel_typical_distance(value_at(half), largest, centre) > own;
                most = far ? half : most;
                past = far ? past : half + 1;
            }
            const gumbel_wide mass = (past < end ? mass_before(past) : facts.mass) -
                                     (from < end ? mass_before(from) : facts.mass);
            if (mass >= needed && past - from >= program.min_keep)
                reach = min(reach, gumbel_bits_of(own));
        }
        /* Distances are at least 0, so that their bits are ordered as they are. */
        const float farthest = gumbel_float_of(__reduce_min_sync(~0u, reach));
        const int nearest = find_end(begin, [=](float v) {
            return (v - largest) - centre >= 0.0f &&
                   gumbel_typical_distance(v, largest, centre) > farthest;
        });
        end = find_end(nearest, [=](float v) {
            return !(gumbel_typical_distance(v, largest, centre) > farthest);
        });
        begin = nearest;
    }

    /* Drops values that have become -inf, and restores the order of ties. */
    __device__ void end_change()
    {
        __syncwarp();
        end = find_end_of(-FLT_MAX);
        if (!program.exact)
            return;
        uint32_t wrong = 0;
#pragma unroll 1
        for (int at = begin + (int)threadIdx.x % 32; at + 1 < end; at += 32)
            wrong |= value_at(at) == value_at(at + 1) && id_at(at) > id_at(at + 1);
        if (__reduce_or_sync(~0u, wrong))
            sort_ties(begin, end);
    }

    __device__ void run_temperature(const gumbel_facts &facts)
    {
        float temperature = program.temperature;
        if (program.temperature_range > 0.0f)
            temperature = gumbel_dynamic_temperature(&facts, temperature, program.temperature_range,
                                                     program.temperature_exponent);
        const float inverse = fminf(1.0f / temperature, GUMBEL_INVERSE_TEMPERATURE_HIGHEST);
#pragma unroll 1
        for (int at = begin + (int)threadIdx.x % 32; at < end; at += 32)
            value_at(at) *= inverse;
        xtc_value *= inverse;
        end_change();
    }

    __device__ void run_smoothing()
    {
        const float largest = value_at(begin);
        __syncwarp(); /* before the largest value is written */
#pragma unroll 1
        for (int at = begin + (int)threadIdx.x % 32; at < end; at += 32)
            value_at(at) = gumbel_smooth_value(value_at(at), largest, program.smoothing_factor,
                                               program.smoothing_curve);
        end_change();
    }

    /* The last rule; the tokens then are in no order. */
    __device__ void run_adaptive_p(const gumbel_facts &facts)
    {
        const float largest = value_at(begin), inverse = gumbel_invert_mass(facts.mass);
        __syncwarp(); /* before the largest value is written */
#pragma unroll 1
        for (int at = begin + (int)threadIdx.x % 32; at < end; at += 32)
            value_at(at) =
                gumbel_adapt_value(value_at(at), largest, inverse, program.adaptive_target);
        __syncwarp();
    }

    /* Finds the tokens that XTC may exclude; exclude_top_choices() excludes them. */
    __device__ void run_xtc(const gumbel_facts &facts)
    {
        const float distance =
            -(gumbel_log_mass(facts.mass) + gumbel_log_probability(program.xtc_threshold));
        const int place = find_end_of(gumbel_threshold_below(value_at(begin), distance));
        has_xtc = place - begin >= 2;
        xtc_value = has_xtc ? value_at(place - 1) : 0.0f;
    }

    /* Whether a token of [begin, place) is in the row's xtc_keep list. */
    __device__ bool has_listed(int place) const
    {
        const gumbel_problem &q = shared_state().call.problem;
        const gumbel_token_lists &lists = q.programs.xtc_keep;
        uint32_t found = 0;
        if (!lists.offsets)
            return false;
        const int64_t list = gumbel_problem_list_of_row(&q, b);
        for (int64_t i = lists.offsets[list] + threadIdx.x % 32; i < lists.offsets[list + 1];
             i += 32)
            for (int at = begin; at < place; at++)
                found |= id_at(at) == lists.ids[i];
        return __reduce_or_sync(~0u, found) != 0;
    }

    __device__ void exclude_top_choices()
    {
        const float from = xtc_value;
        if (!(from > -INFINITY))
            return;                                       /* all tokens would be excluded */
        int place = program.exact ? find_end_of(from) - 1 /* the highest id of a tie stays */
                                  : find_end(begin, [=](float v) { return v > from; });
        if (place <= begin || end - place < program.min_keep || has_listed(place))
            return;
        const float distance = value_at(begin) - from; /* read before a lane changes the values */
        /* The mass of each set is relative to its own largest value. */
        const gumbel_wide excluded = sum_masses(begin, place);
        const gumbel_wide remaining = sum_masses(place, end);
        const float shift =
            gumbel_xtc_shift(program.xtc_probability, excluded, remaining, distance);
        if (shift == -INFINITY) {
            begin = place;
            return;
        }
#pragma unroll 1
        for (int at = begin + (int)threadIdx.x % 32; at < place; at += 32)
            value_at(at) += shift;
        __syncwarp();
    }

    /* The sums that a rule requires. */
    __device__ __forceinline__ int required_facts(gumbel_program_rule rule) const
    {
        switch (rule) {
        case GUMBEL_PROGRAM_TYPICAL_P:
            return GUMBEL_FACT_ENTROPY;
        case GUMBEL_PROGRAM_TEMPERATURE:
            return program.temperature_range > 0.0f ? GUMBEL_FACT_ENTROPY : 0;
        case GUMBEL_PROGRAM_XTC:
        case GUMBEL_PROGRAM_ADAPTIVE_P:
            return GUMBEL_FACT_MASS;
        default:
            return max(gumbel_threshold_facts(rule), 0);
        }
    }

    __device__ __forceinline__ void run_rule(gumbel_program_rule rule)
    {
        const int required = required_facts(rule);
        gumbel_facts facts = {};
        if (required)
            facts = sum_facts(required);
        switch (rule) {
        case GUMBEL_PROGRAM_TEMPERATURE:
            return run_temperature(facts);
        case GUMBEL_PROGRAM_SMOOTHING:
            return run_smoothing();
        case GUMBEL_PROGRAM_ADAPTIVE_P:
            return run_adaptive_p(facts);
        case GUMBEL_PROGRAM_TOP_K:
            return run_top_k();
        case GUMBEL_PROGRAM_TOP_P:
            return run_top_p();
        case GUMBEL_PROGRAM_TYPICAL_P:
            return run_typical_p(facts);
        case GUMBEL_PROGRAM_XTC:
            return run_xtc(facts);
        default:
            const float distance = gumbel_threshold_distance(&program, rule, &facts);
            return remove_from(find_end_of(gumbel_threshold_below(value_at(begin), distance)),
                               false);
        }
    }

    /* Runs the rules from `first` on. Returns the flags of the values. */
    __device__ __forceinline__ uint32_t run_rules(int first)
    {
#pragma unroll 1
        for (int i = first; i < GUMBEL_PROGRAM_LENGTH; i++) {
            const gumbel_program_rule rule = (gumbel_program_rule)program.rules[i];
            if (rule == GUMBEL_PROGRAM_END || begin == end)
                break;
            __syncwarp(); /* no lane still reads what this rule writes */
            if (gumbel_rule_is_on(&program, rule))
                run_rule(rule);
            if (begin < end && !(value_at(begin) < INFINITY))
                return GUMBEL_FLAG_INFINITE; /* a temperature made the values infinite */
        }
        if (has_xtc && begin < end)
            exclude_top_choices();
        return 0;
    }
};

} // namespace

#endif
