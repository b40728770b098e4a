/* SPDX-License-Identifier: Apache-2.0
 *
 * Serves a row with a program by the CTAs that hold its slices, by the first method that suits it.
 */
#ifndef GUMBEL_CUDA_PROGRAM_ROW_CUH
#define GUMBEL_CUDA_PROGRAM_ROW_CUH

#include "cuda/truncated/programs/program_gather.cuh"
#include "cuda/truncated/programs/program_pivot.cuh"
#include "cuda/truncated/programs/program_walk.cuh"

namespace
{

/* Runs the program of the row, which is not greedy and has a token, on the slices. Returns the
 * facts of the values that remain. */
__device__ __noinline__ row_facts run_program(const cuda_truncated_params &p, slice_source source,
                                              const row_facts &facts, int64_t b)
{
    program_walk walk = {
        p.problem,  program_memory().program,           source,
        b,          gumbel_value_of_key(facts.highest), gumbel_value_of_key(facts.lowest),
        facts.alive};
    walk.run_rules();
    if (threadIdx.x == 0)
        shared_state().row.draw.inverse_temperature = walk.factor;
    return remove_and_scan(source, walk.bound, walk.factor);
}

__device__ __forceinline__ void serve_by_program(const cuda_truncated_params &p, int64_t b)
{
    const gumbel_problem &q = p.problem;
    const slice_source source = find_slice(p);
    const row_reader reader = make_reader(p, source, b);
    gumbel_summary seen, raw = {};
    required_tokens &required = program_memory().required;
    if (threadIdx.x / 32 == kWarps - 2)
        prefetch_program(q, b);
    load_row(p, reader, source, [&] {
        if (threadIdx.x == kThreads - 64) {
            truncated_row row;
            program_memory().suffices = describe_program(p, b, row, required);
            program_memory().single = find_single_rule(program_memory().program);
        }
    });
    const bool suffices = program_memory().suffices;
    wait_for_cluster();
    if (q.features & GUMBEL_FEATURE_RAW)
        raw = sum_raw(source);
    edit_slice(reader, source);
    __syncthreads();
    const bool all = p.processed || q.sampling.given.data;
    if (!all && !suffices && can_serve_program_by_pivots(p) &&
        serve_program_by_pivots(p, source, b))
        return;
    float thread_max;
    row_facts facts = scan_slice(source, program_memory().factor, thread_max);
    if (!all && suffices && required.target > 0)
        facts.reached_key = find_key_of_slices(p, facts, thread_max, required.target);
    __syncthreads(); /* all threads have read the memory that the next exchange writes */
    facts = join_cluster(facts);
    const uint32_t flags = facts.flags | shared_state().row.flags;
    if (!all && serve_before_program(source, facts, suffices ? &required : nullptr, b, flags, raw))
        return;
    if (!flags && facts.alive > 0 && program_memory().runs)
        facts = run_program(p, source, facts, b);
    gumbel_summary_empty(&seen);
    seen.flags = flags | facts.flags;
    seen.best_id = facts.alive > 0 ? 0 : -1;
    if (all || !serve_from_list(source, facts, nullptr, b, seen, raw))
        serve_by_passes(p, source, facts, b, seen, raw);
}

} // namespace

#endif
