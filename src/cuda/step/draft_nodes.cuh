/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes of a request, and its end, for the kernels that accept drafts.
 */
#ifndef GUMBEL_CUDA_DRAFT_NODES_CUH
#define GUMBEL_CUDA_DRAFT_NODES_CUH

#include "drafts/draft_walk.h"
#include "cuda/common/ptx.cuh"
#include "cuda/policy/cuda_policy.h"

namespace
{

/* Loads the nodes of a request as its caller drafted them, by `threads` threads. */
__device__ __forceinline__ void read_undrawn(const gumbel_verification &v, gumbel_span span,
                                             gumbel_node *nodes, int threads)
{
    for (int32_t j = threadIdx.x; j < span.count; j += threads)
        nodes[j] = gumbel_read_draft_node(&v, span.first, j);
}

/* Adds the draws to the nodes that this thread has loaded; returns whether these nodes are valid.
 */
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

/* Whether request r has nodes to walk over, or an invalid span. */
__device__ bool has_nodes(const gumbel_verification &v, int64_t r, gumbel_span span)
{
    return r < gumbel_draft_live(&v) && !(span.sound && span.count == 0);
}

/* Writes the results of request r. `w` is valid in lane 0; w.emitted in all lanes. */
__device__ void finish_request(const gumbel_verification &v, int64_t r, const gumbel_walk_result &w,
                               int lanes)
{
    gumbel_draft_write_end(&v, r, &w, threadIdx.x, lanes);
    if (threadIdx.x != 0)
        return;
    gumbel_draft_advance(&v, r, w.emitted);
    if (v.verified.histogram && gumbel_walk_is_counted(&w))
        atomicAdd((unsigned long long *)&v.verified.histogram[gumbel_walk_accepted(&w)], 1ull);
}

} // namespace

#endif
