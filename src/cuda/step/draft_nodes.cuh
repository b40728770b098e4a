/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels that accept drafts have in common: the nodes of a request, and its end.
 */
#ifndef GUMBEL_CUDA_DRAFT_NODES_CUH
#define GUMBEL_CUDA_DRAFT_NODES_CUH

#include "drafts/draft_walk.h"
#include "cuda/common/ptx.cuh"
#include "cuda/policy/cuda_policy.h"

namespace
{

/* Read the nodes of a request whose rows begin at `first`, by `threads`: whether those that this
 * thread has read can be. */
__device__ bool read_nodes(const gumbel_verification &v, int64_t r, gumbel_span span,
                           gumbel_node *nodes, int threads)
{
    bool sound = span.sound;
    for (int32_t j = threadIdx.x; j < span.count; j += threads) {
        nodes[j] = gumbel_draft_node(&v, r, span.first, j);
        sound &= nodes[j].parent != GUMBEL_PARENT_NONE;
    }
    return sound;
}

/* Whether request r has nodes to walk over, or such as cannot be. */
__device__ bool is_asked(const gumbel_verification &v, int64_t r, gumbel_span span)
{
    return r < gumbel_draft_live(&v) && !(span.sound && span.count == 0);
}

/* Write what request r has come to; `w` is lane 0's, but for how many were emitted, all lanes'. */
__device__ void end_request(const gumbel_verification &v, int64_t r, const gumbel_walked &w,
                            int lanes)
{
    gumbel_draft_end(&v, r, &w, threadIdx.x, lanes);
    if (threadIdx.x != 0)
        return;
    gumbel_draft_advance(&v, r, w.emitted);
    if (v.verified.histogram && gumbel_walked_counts(&w))
        atomicAdd((unsigned long long *)&v.verified.histogram[gumbel_walked_accepted(&w)], 1ull);
}

} // namespace

#endif
