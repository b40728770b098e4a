/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws rows before their program runs, as cluster_pivot.cuh draws before truncation. The program
 * has at most one rule besides TEMPERATURE (single_rule.cuh). The winner of a draw from a superset
 * of the kept set is the row's token if the rule keeps it. If the rule removes the winner, it also
 * removes all tokens that are at least as far from the centre, and the winner among the closer
 * tokens is tried next. Where floats do not decide, the exact sums of program_walk.cuh serve the
 * row.
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

template <class Facts>
__device__ __noinline__ pivot_facts sum_pivot_facts(slice_source source, float scale, float largest)
{
    pivot_facts own = pivot_facts::empty();
    each_own_y(source, [&](float y) { Facts::add(own, largest - y * scale); });
    return join_cluster(own);
}

/* Sums the masses of tokens closer to the centre than the value `winner`. */
__device__ __noinline__ closer_masses sum_closer(slice_source source, float scale,
                                                 values_near values, float winner, float error)
{
    const float reach = values.find_distance(winner);
    closer_masses own = closer_masses::empty();
    each_own_y(source, [&](float y) { own.add(values, y * scale, winner, reach, error); });
    return join_cluster(own);
}

/* Determines what the row's rule keeps, given the largest value; sets `read` if the cluster has
 * exchanged sums. For all threads of the cluster. */
__device__ __forceinline__ kept_values find_kept_values(slice_source source, float scale,
                                                        float largest, bool &read)
{
    const program_state &state = program_memory();
    const int required = facts_of_rule(state.single.rule);
    pivot_facts sums = {0, 1.0f, 0.0f}; /* without an exchange, the largest token alone */
    if (required)
        sums = required & GUMBEL_FACT_SPREAD ? sum_pivot_facts<spread_facts>(source, scale, largest)
               : required & GUMBEL_FACT_ENTROPY
                   ? sum_pivot_facts<mass_facts<true>>(source, scale, largest)
                   : sum_pivot_facts<mass_facts<false>>(source, scale, largest);
    read |= required != 0;
    return describe_kept(state.program, state.single.rule, largest, sums, 0.0f);
}

/* Determines whether the rule keeps a winner with this value, and sets `reach`. */
__device__ __forceinline__ pivot_verdict determine_verdict(slice_source source, float scale,
                                                           kept_values &kept, float value)
{
    const program_state &state = program_memory();
    const gumbel_program_rule rule = state.single.rule;
    if (rule == GUMBEL_PROGRAM_END)
        return PIVOT_KEPT;
    if (!sums_closer_tokens(rule))
        return determine_threshold_verdict(kept, value);
    const closer_masses closer =
        sum_closer(source, scale, kept.values, value, error_of_distance(kept, value));
    return determine_mass_verdict(state.program, rule, kept, closer, value);
}

/* Whether pivots can serve the row. */
__device__ __forceinline__ bool can_serve_program_by_pivots(const cuda_truncated_params &p)
{
    return program_memory().single.is_single && pivots_apply(p, shared_state().row);
}

/* Serves row b; returns false if another path must serve it. By all threads of the cluster, after
 * reset_offers() and a barrier of the cluster. */
__device__ __noinline__ bool serve_program_by_pivots(const cuda_truncated_params &p,
                                                     slice_source source, int64_t b)
{
    const truncated_row &row = shared_state().row;
    const single_rule &single = program_memory().single;
    const logit_values values = {row.draw.inverse_temperature, single.before};
    kept_values kept = {{0.0f, 0.0f, INFINITY}, 0.0f, {-1.0f, INFINITY}};
    bool removed = true;
#pragma unroll 1
    for (int round = 0; removed && round < kPivots; round++) {
        const pivot_draw found = draw_accepted(source, values, kept.values);
        if (found.flags || row.flags || found.offered > kOffers || found.best.id < 0)
            return false;
        const float value = value_of_winner(source, values, found.best);
        bool read = !values.before; /* no CTA still reads the winner's value in another's memory */
        if (round == 0)
            kept = find_kept_values(source, values.scale(),
                                    values.to_value(gumbel_value_of_key(found.highest)), read);
        const pivot_verdict verdict = determine_verdict(source, values.scale(), kept, value);
        if (verdict == PIVOT_KEPT)
            write_winner(p, b, found.best);
        if (threadIdx.x == 0)
            reset_offers();
        if (read || sums_closer_tokens(single.rule))
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
