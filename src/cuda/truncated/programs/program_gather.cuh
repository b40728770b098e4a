/* SPDX-License-Identifier: Apache-2.0
 *
 * A row of a cluster that is served from a list of tokens, gathered before its program runs.
 */
#ifndef GUMBEL_CUDA_PROGRAM_GATHER_CUH
#define GUMBEL_CUDA_PROGRAM_GATHER_CUH

#include "cuda/truncated/cluster/cluster_list.cuh"
#include "cuda/truncated/programs/program_serve.cuh"

namespace
{

/* serve_program_list() of the leader. Not inlined, so that the other paths keep their registers. */
__device__ __noinline__ void serve_listed_program(int64_t b, int count, uint32_t flags,
                                                  const gumbel_summary &raw)
{
    serve_program_list(b, count, flags, raw);
}

/* Serves a row, before its program has run, from a list of its required tokens; `required` NULL:
 * of all tokens. Returns whether they fit in a CTA. */
__device__ __forceinline__ bool serve_before_program(slice_source source, const row_facts &facts,
                                                     const required_tokens *required, int64_t b,
                                                     uint32_t flags, const gumbel_summary &raw)
{
    int count = 0;
    if (!flags && facts.alive > 0) {
        const bool few = facts.alive <= kShortlist;
        if (!few && !required)
            return false;
        count = gather_required(source, facts, program_values(), few ? nullptr : required);
    }
    if (count >= 0 && leads_cluster())
        serve_listed_program(b, count, flags, raw);
    return count >= 0;
}

} // namespace

#endif
