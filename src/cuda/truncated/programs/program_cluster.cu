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
#include "cuda/truncated/programs/program_row.cuh"

#include "cuda/common/cuda_program_params.h"

extern "C" __global__ void __cluster_dims__(kClusterCtas, 1, 1) __launch_bounds__(kThreads, 2)
    gumbel_program_cluster(const __grid_constant__ cuda_program_params p)
{
    const cuda_truncated_params &call = load_call(p.call);
    __syncthreads();
    if (threadIdx.x == 0) /* the host's address until here */
        shared_state().call.problem.programs.rules = p.rules;
    serve_rows(p.call, [&](int64_t b) { serve_by_program(call, b); });
}
