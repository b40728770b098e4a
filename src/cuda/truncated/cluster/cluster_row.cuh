/* SPDX-License-Identifier: Apache-2.0
 *
 * Serves a row by the CTAs that hold its slices, by the first method that suits it.
 */
#ifndef GUMBEL_CUDA_CLUSTER_ROW_CUH
#define GUMBEL_CUDA_CLUSTER_ROW_CUH

#include "cuda/truncated/cluster/cluster_serve.cuh"
#include "cuda/truncated/cluster/cluster_pivot.cuh"

namespace
{

/* Serves row b by the whole cluster. */
__device__ __forceinline__ void serve_by_cluster(const cuda_truncated_params &p, int64_t b)
{
    const gumbel_problem &q = p.problem;
    const slice_source source = find_slice(p);
    const row_reader reader = make_reader(p, source, b);
    required_tokens required;
    load_row(p, reader, source, [] {});
    gumbel_summary seen, raw = {};
    /* Processed rows and given tokens need tokens that other paths skip. */
    const bool all = p.processed || q.sampling.given.data;
    const bool of_raw = q.features & GUMBEL_FEATURE_RAW,
               pivots = !all && can_serve_by_pivots(p, shared_state().row);
    if (of_raw || pivots)
        wait_for_cluster();
    if (of_raw)
        raw = sum_raw(source);
    edit_slice(reader, source);
    if (pivots && serve_by_pivots(p, source, b))
        return;
    float thread_max;
    row_facts facts = scan_slice(source, shared_state().row.draw.inverse_temperature, thread_max);
    bool filtered =
        !all && candidates_suffice(p, shared_state().row, shared_state().row.draw.greedy, required);
    bool few = !all && !filtered && can_serve_few_by_pivots(p, shared_state().row);
    bool by_mass = !all && !filtered && can_serve_by_mass(p, shared_state().row, required);
    if ((filtered || few || by_mass) && required.target > 0)
        facts.reached_key = find_key_of_slices(p, facts, thread_max, required.target);
    if (!of_raw && !pivots)
        wait_for_cluster();
    __syncthreads();
    facts = join_cluster(facts);
    gumbel_summary_empty(&seen);
    seen.flags = facts.flags | shared_state().row.flags;
    seen.best_id = facts.alive > 0 ? 0 : -1;
    bool served =
        !all && ((few && serve_few_by_pivots(p, source, facts, b, seen)) ||
                 (by_mass && serve_by_mass(source, facts, required, b, seen, raw)) ||
                 serve_from_list(source, facts, filtered ? &required : nullptr, b, seen, raw));
    if (!served)
        serve_by_passes(p, source, facts, b, seen, raw);
}

} // namespace

#endif
