/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   draws rows by programs (gumbel/programs.h) that begin with TOP_K or MIN_P, at most after a
 *        TEMPERATURE: the last CTA of a row lists the tokens that these rules can keep from few of
 *        its blocks, as truncated_blocks.cu does, and runs the program on the list. Fallback rows
 *        go to clusters (program_cluster.cu).
 * COST   as truncated_blocks.cu; one warp runs the rules.
 * MAP, SMEM, SYNC  those of truncated_blocks.cu.
 * NUMERICS  those of program_cluster.cu, bit for bit: all sums are of integers.
 */
#include "cuda/truncated/blocks/block_kernel.cuh"
#include "cuda/truncated/programs/program_serve.cuh"

#include "cuda/common/cuda_program_params.h"

namespace
{

/* Rows that have a program; as truncation_rows. */
struct program_rows {
    const uint8_t *rules; /* of all programs, in the kernel's parameters */

    /* Sets the program, by one thread, whose return value is that of describe_program(). */
    __device__ __forceinline__ bool load_program(const cuda_truncated_params &p, int64_t b) const
    {
        shared_state().call.problem.programs.rules = rules; /* the host's address until here */
        return describe_program(p, b, shared_state().row, block_state().required);
    }

    __device__ __forceinline__ bool is_worth_reading(const cuda_truncated_params &p,
                                                     int64_t b) const
    {
        return __syncthreads_or(threadIdx.x == 32 && gumbel_problem_row_is_live(&p.problem, b) &&
                                load_program(p, b));
    }

    /* As describe_row(). Without stored block maxima, is_worth_reading() has set the program. */
    __device__ __forceinline__ bool set_parameters(const cuda_truncated_params &p, int64_t b) const
    {
        truncated_row &row = shared_state().row;
        if (threadIdx.x == 0) {
            set_draw(row, p.problem, b);
            return row.flags != 0;
        }
        if (threadIdx.x == 32)
            return p.has_block_maxima && !load_program(p, b);
        if (threadIdx.x == 64) {
            set_edits(row, p.problem, b);
            return !edits_only_lower(p.problem, row);
        }
        return false;
    }

    __device__ __forceinline__ logit_values get_values() const { return program_values(); }

    __device__ __forceinline__ void finish(int64_t b, found_tokens found) const
    {
        gumbel_summary raw; /* raw masses are not supported here */
        gumbel_summary_empty(&raw);
        if (threadIdx.x == 0)
            publish_row_state(shared_state().call, b, CUDA_ROW_SERVED);
        serve_program_list(b, found.count, found.flags, raw);
    }
};

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, CUDA_TRUNCATED_CTAS)
    gumbel_program_blocks(const __grid_constant__ cuda_program_params p)
{
    serve_split(p.call, program_rows{p.rules});
}
