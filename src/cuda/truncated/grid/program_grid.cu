/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   program_cluster.cu for GPUs without clusters: draws rows of logits by their programs, or
 *        processes them.
 * COST   that of program_cluster.cu, with the exchanges of truncated_grid.cu.
 * MAP, SMEM, SYNC  those of truncated_grid.cu.
 * NUMERICS  those of program_cluster.cu: the kept tokens and their z are the CPU's, bit for bit.
 */
#define CUDA_ROWS_BY_GRID
#include "cuda/truncated/programs/program_row.cuh"

#include "cuda/common/cuda_program_params.h"

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    gumbel_program_grid(const __grid_constant__ cuda_program_params p)
{
    const cuda_truncated_params &call = load_call(p.call);
    __syncthreads();
    if (threadIdx.x == 0) {
        shared_state().call.problem.programs.rules = p.rules; /* the host's address until here */
        begin_steps();
    }
    serve_rows(p.call, [&](int64_t b) { serve_by_program(call, b); });
}
