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

/* Read the nodes of a request as its caller drafted them, by `threads`. */
__device__ __forceinline__ void read_undrawn(const gumbel_verification &v, gumbel_span span,
                                             gumbel_node *nodes, int threads)
{
    for (int32_t j = threadIdx.x; j < span.count; j += threads)
        nodes[j] = gumbel_draft_undrawn(&v, span.first, j);
}

/* Add their draws, each to a node that this thread has read: whether all of these can be. */
__device__ __forceinline__ bool add_draws(const gumbel_verification &v, int64_t r, gumbel_span span,
                                          gumbel_node *nodes, int threads)
{
    bool sound = span.sound;
    for (int32_t j = threadIdx.x; j < span.count; j += threads) {
        gumbel_draft_add_draw(&v, r, span.first + j, &nodes[j]);
        sound &= nodes[j].parent != GUMBEL_PARENT_NONE;
    }
    return sound;
}

/* Whether request r has nodes to walk over, or such as cannot be. */
__device__ bool has_nodes(const gumbel_verification &v, int64_t r, gumbel_span span)
{
    return r < gumbel_draft_live(&v) && !(span.sound && span.count == 0);
}

/* Write what request r has come to; `w` is lane 0's, but for how many were emitted, all lanes'. */
__device__ void finish_request(const gumbel_verification &v, int64_t r, const gumbel_walked &w,
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
