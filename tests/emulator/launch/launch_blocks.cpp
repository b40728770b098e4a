// SPDX-License-Identifier: Apache-2.0
//
// The kernel is included, so that what stands in for the hardware's words comes before it.
#include "ptx_words.h"

#include "cuda/request/blocks/request_blocks.cu"

#include "ctas.h"
#include "launch_blocks.h"

namespace
{

void blocks_body(const void *argument)
{
    const cuda_request_params &p = *(const cuda_request_params *)argument;
    p.stored_strips ? gumbel_request_bounded(p) : gumbel_request_blocks(p);
}

} // namespace

void emulate_blocks(const cuda_request_params &p, uint64_t *random, const char *what)
{
    size_t bytes = (size_t)cuda_request_blocks_bytes(p.blocks);
    run_ctas(blocks_body, &p, {p.problem.batch * p.parts, 1, CUDA_REQUEST_THREADS, bytes, memories},
             random, what);
}
