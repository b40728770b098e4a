/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   drafts verified (drafts/draft_walk.h): before a draw each row is told its request and its
 *        position; behind it each request walks from its root and emits.
 * COST   some 40 bytes a row: nothing beside the launches.
 * MAP    expand: a thread a row. accept: a warp a request, whose lanes read its nodes; one lane
 *        walks.
 * SMEM   the nodes of a request, 20 bytes each.
 * SYNC   one __syncwarp() between reading nodes and walking.
 */
#include "drafts/draft_walk.h"
#include "cuda/policy/cuda_policy.h"

namespace
{

/* [M] in shared memory. */
__device__ __forceinline__ gumbel_node *nodes_of_request()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return (gumbel_node *)shared_memory;
}

/* Read the nodes of a request whose rows begin at `first`, by a warp: whether they can be. */
__device__ bool read_nodes(const gumbel_verification &v, int64_t r, gumbel_span span,
                           gumbel_node *nodes)
{
    bool sound = span.sound;
    for (int32_t j = threadIdx.x; j < span.count; j += CUDA_DRAFT_THREADS) {
        nodes[j] = gumbel_draft_node(&v, r, span.first, j);
        sound &= nodes[j].parent != GUMBEL_PARENT_NONE;
    }
    return !__any_sync(~0u, !sound);
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_expand_drafts(const __grid_constant__ gumbel_verification v)
{
    const int64_t b = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x;
    if (b == 0 && v.of_row.path_offsets)
        v.of_row.path_offsets[0] = 0;
    if (b < v.rows)
        gumbel_draft_row(&v, b);
}

extern "C" __global__ void __launch_bounds__(CUDA_DRAFT_THREADS)
    gumbel_accept_drafts(const __grid_constant__ gumbel_verification v)
{
    gumbel_node *nodes = nodes_of_request();
    const int64_t r = blockIdx.x;
    const int32_t lane = threadIdx.x;
    const gumbel_span span = gumbel_draft_span(&v, r);
    gumbel_walked w = gumbel_walked_not(GUMBEL_ROW_UNUSED);
    if (r < gumbel_draft_live(&v) && !(span.sound && span.count == 0)) {
        const bool sound = read_nodes(v, r, span, nodes);
        w.status = GUMBEL_ROW_DRAFT;
        __syncwarp();
        if (sound && lane == 0)
            w = gumbel_draft_walk(&v, r, span.first, nodes, span.count);
        w.emitted = __shfl_sync(~0u, w.emitted, 0);
    }
    gumbel_draft_end(&v, r, &w, lane, CUDA_DRAFT_THREADS);
    if (lane != 0)
        return;
    gumbel_draft_advance(&v, r, w.emitted);
    if (v.verified.histogram && gumbel_walked_counts(&w))
        atomicAdd((unsigned long long *)&v.verified.histogram[gumbel_walked_accepted(&w)], 1ull);
}
