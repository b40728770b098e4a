/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   draws rows of logits by their programs (gumbel/programs.h), or processes them: edits, then
 *        the rules of the row's program one after the other, then the draw from the tokens that
 *        remain. Every option and output.
 * COST   reads B V elements once. If at most kShortlist tokens can matter (a program that begins
 *        with a TOP_K up to about 250 or a MIN_P, at most after a TEMPERATURE; a greedy row), they
 *        are gathered before the program, and one CTA runs the rules on their list
 *        (program_list.cuh). If only a token is requested, a program with one rule besides
 *        TEMPERATURE is drawn before the rule, in two or three passes (program_pivot.cuh).
 *        Otherwise, each rule takes one to five passes over a slice in shared memory, and as many
 *        exchanges of the cluster.
 * MAP, SMEM, SYNC  those of truncated_cluster.cu; the previous launch is program_blocks.cu.
 * NUMERICS  all sums are of integers, and thresholds follow from them by maths/program_rules.h: the
 *        kept tokens and their z are the CPU's, bit for bit.
 */
#include "cuda/truncated/programs/program_gather.cuh"
#include "cuda/truncated/programs/program_pivot.cuh"
#include "cuda/truncated/programs/program_walk.cuh"

#include "cuda/common/cuda_program_params.h"

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
        facts.reached_key = find_reached_key(facts, thread_max,
                                             (required.target + kClusterCtas - 1) / kClusterCtas);
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

extern "C" __global__ void __cluster_dims__(kClusterCtas, 1, 1) __launch_bounds__(kThreads, 2)
    gumbel_program_cluster(const __grid_constant__ cuda_program_params p)
{
    const cuda_truncated_params &call = load_call(p.call);
    __syncthreads();
    if (threadIdx.x == 0) /* the host's address until here */
        shared_state().call.problem.programs.rules = p.rules;
    serve_rows(p.call, [&](int64_t b) { serve_by_program(call, b); });
}
