/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   verifies drafts (drafts/draft_walk.h). expand, before the draw, assigns request and
 *        position to each row. accept, after the draw, walks each request from its root and emits
 *        tokens.
 * COST   about 40 bytes a row: negligible beside the launches.
 * MAP    expand: a thread a row. accept: a warp a request, whose lanes load its nodes; one lane
 *        walks.
 * SMEM   the nodes of a request, 20 bytes each.
 * SYNC   accept: the lane that walks waits until all lanes have loaded their nodes. The launch
 *        after expand may start before expand ends. accept reads the caller's data before it waits
 *        for the launch of the draw; expand has already waited for the launches that wrote this
 *        data.
 */
#include "cuda/step/draft_nodes.cuh"

namespace
{

/* [M] */
__device__ __forceinline__ gumbel_node *shared_nodes()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return (gumbel_node *)shared_memory;
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_expand_drafts(const __grid_constant__ gumbel_verification v)
{
    const int64_t b = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x;
    ptx_wait_for_launch();
    ptx_allow_launch();
    if (b == 0 && v.of_row.path_offsets)
        v.of_row.path_offsets[0] = 0;
    if (b < v.rows)
        gumbel_draft_expand_row(&v, b);
}

extern "C" __global__ void __launch_bounds__(CUDA_DRAFT_THREADS)
    gumbel_accept_drafts(const __grid_constant__ gumbel_verification v)
{
    gumbel_node *nodes = shared_nodes();
    const int64_t r = blockIdx.x;
    const bool behind_draw = v.rows > 0;
    if (!behind_draw)
        ptx_wait_for_launch();
    const gumbel_span span = gumbel_draft_span(&v, r);
    const bool walks = has_nodes(v, r, span);
    gumbel_walk_result w = gumbel_walk_result_none(GUMBEL_ROW_UNUSED);
    read_undrawn(v, span, nodes, CUDA_DRAFT_THREADS);
    if (behind_draw)
        ptx_wait_for_launch();
    if (walks) {
        const bool sound = !__any_sync(~0u, !add_draws(v, r, span, nodes, CUDA_DRAFT_THREADS));
        w.status = GUMBEL_ROW_DRAFT;
        __syncwarp();
        if (sound && threadIdx.x == 0)
            w = gumbel_draft_walk(&v, r, span.first, nodes, span.count);
        w.emitted = __shfl_sync(~0u, w.emitted, 0);
    }
    finish_request(v, r, w, CUDA_DRAFT_THREADS);
}
