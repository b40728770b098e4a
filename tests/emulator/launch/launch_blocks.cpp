// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics.
#include "ptx_emulated.h"

#include "cuda/truncated/blocks/truncated_blocks.cu"
#include "cuda/truncated/blocks/truncated_bounded.cu"
#include "cuda/truncated/programs/program_blocks.cu"
#include "cuda/step/ranks/top64_draw.cu"
#include "cuda/step/ranks/top64_select.cu"

#include "ctas.h"
#include "launch_blocks.h"
#include "launch_cluster.h"
#include "launch_ranks.h"

namespace
{

void blocks_body(const void *argument)
{
    const cuda_truncated_params &p = *(const cuda_truncated_params *)argument;
    p.stored_subtiles ? gumbel_truncated_bounded(p) : gumbel_truncated_blocks(p);
}

template <class params, void (*kernel)(params)> void kernel_body(const void *argument)
{
    kernel(*(const params *)argument);
}

cta_shape top64_shape(const cuda_truncated_params &p)
{
    return {p.problem.batch, 1, CUDA_TRUNCATED_THREADS, (size_t)CUDA_TOP64_BYTES_OF(p.blocks),
            memories};
}

} // namespace

void emulate_blocks(const cuda_truncated_params &p, uint64_t *random, const char *what)
{
    size_t bytes = (size_t)cuda_blocks_bytes(p.blocks);
    run_ctas(blocks_body, &p,
             {p.problem.batch * p.splits, 1, CUDA_TRUNCATED_THREADS, bytes, memories}, random,
             what);
}

void emulate_program_blocks(const cuda_truncated_params &call, uint64_t *random, const char *what)
{
    const cuda_program_params p = program_params_of(call);
    const size_t bytes = (size_t)cuda_blocks_bytes(call.blocks);
    run_ctas(kernel_body<cuda_program_params, gumbel_program_blocks>, &p,
             {call.problem.batch * call.splits, 1, CUDA_TRUNCATED_THREADS, bytes, memories}, random,
             what);
}

void emulate_draw_top64(const cuda_top64_params &p, uint64_t *random, const char *what)
{
    run_ctas(kernel_body<cuda_top64_params, gumbel_draw_top64>, &p, top64_shape(p.rows), random,
             what);
}

void emulate_select_top64(const cuda_top64_params &p, uint64_t *random, const char *what)
{
    run_ctas(kernel_body<cuda_top64_params, gumbel_select_top64>, &p, top64_shape(p.rows), random,
             what);
}

void emulate_exchange_top64(const cuda_top64_exchange_params &p, uint64_t *random, const char *what)
{
    const cuda_truncated_params &q = p.draw.rows;
    run_ctas(q.block_maxima ? kernel_body<cuda_top64_exchange_params, gumbel_select_exchange_top64>
                            : kernel_body<cuda_top64_exchange_params, gumbel_exchange_top64>,
             &p, top64_shape(q), random, what);
}
