/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   draws rows of logits by their programs (gumbel/programs.h), or processes them: edits, then
 *        the rules of the row's program one after the other, then the draw from the tokens that
 *        remain. Every option and output.
 * COST   reads B V elements once. Each rule takes one to five passes over a slice in shared memory,
 *        and as many exchanges of the cluster.
 * MAP, SMEM, SYNC  those of truncated_cluster.cu, without rows that another launch serves.
 * NUMERICS  all sums are of integers, and thresholds follow from them by maths/program_rules.h: the
 *        kept tokens and their z are the CPU's, bit for bit.
 */
#include "cuda/truncated/programs/program_walk.cuh"

#include "cuda/common/cuda_program_params.h"

namespace
{

/* Runs the program of the row, which is not greedy and has a token, on the slices. Returns the
 * facts of the values that remain. */
__device__ __noinline__ row_facts run_program(const cuda_truncated_params &p, slice_source source,
                                              const row_facts &facts, int64_t b)
{
    /* The memory of the most likely tokens, which are listed later. */
    gumbel_row_program &program = *(gumbel_row_program *)shared_state().top;
    static_assert(sizeof program <= sizeof shared_state().top, "fits");
    if (threadIdx.x == 0)
        program = gumbel_problem_program(&p.problem, b);
    __syncthreads();
    program_walk walk = {p.problem,
                         program,
                         source,
                         b,
                         gumbel_value_of_key(facts.highest),
                         gumbel_value_of_key(facts.lowest),
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
    load_row(p, reader, source);
    wait_for_cluster();
    if (q.features & GUMBEL_FEATURE_RAW)
        raw = sum_raw(source);
    edit_slice(reader, source);
    __syncthreads();
    float thread_max;
    row_facts facts = join_cluster(scan_slice(source, 1.0f, thread_max));
    const uint32_t flags = facts.flags | shared_state().row.flags;
    if (!flags && facts.alive > 0 && !shared_state().row.draw.greedy)
        facts = run_program(p, source, facts, b);
    gumbel_summary_empty(&seen);
    seen.flags = flags | facts.flags;
    seen.best_id = facts.alive > 0 ? 0 : -1;
    const bool all = p.processed || q.sampling.given.data;
    if (all || !serve_from_list(source, facts, nullptr, b, seen, raw))
        serve_by_passes(p, source, facts, b, seen, raw);
}

} // namespace

extern "C" __global__ void __cluster_dims__(kClusterCtas, 1, 1) __launch_bounds__(kThreads, 2)
    gumbel_program_cluster(const __grid_constant__ cuda_program_params p)
{
    const int64_t batch = p.call.problem.batch, clusters = gridDim.x / kClusterCtas;
    const cuda_truncated_params &call = load_call(p.call);
    ptx_allow_launch();
    ptx_wait_for_launch();
    __syncthreads();
    if (threadIdx.x == 0) /* the host's address until here */
        shared_state().call.problem.programs.rules = p.rules;
    __syncthreads();
#pragma unroll 1
    for (int64_t b = blockIdx.x / kClusterCtas; b < batch; b += clusters) {
        if (!end_unused_row(call, b, leads_cluster() && threadIdx.x == 0))
            serve_by_program(call, b);
        __syncthreads(); /* before the slice is overwritten */
    }
}
