/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   behind a product that stores its logits and leaves the peaks of their blocks: the first
 *        CUDA_TOP64 tokens of each row of a shard, from few blocks (request_blocks.cuh), said in
 *        words; or told by mailboxes to all other ranks, and the row of the whole drawn from theirs
 *        (listed_row.cuh), in one launch. A row that few blocks do not serve is left.
 * COST   a row's peaks and some 70 strips or blocks; then as candidates.cu.
 * MAP    a CTA a row.
 * SMEM   as request_blocks.cu, and 12 KB for lists.
 * SYNC   as candidates.cu. All that does not need the product's logits comes before its end: each
 *        of its CTAs has waited for what was queued before, the last exchange, too.
 */
#include "cuda/request/blocks/request_blocks.cuh"
#include "cuda/step/ranks/listed_row.cuh"

namespace
{

/* The order of a list. */
constexpr request_values kByY = {1.0f, false};

/* Begin with the list of row b, by two warps side by side; before a barrier. */
__device__ __forceinline__ void start_list(const gumbel_problem &q, int64_t b)
{
    if (threadIdx.x == 96) {
        start_row();
        shared_of_blocks().wanted = {CUDA_TOP64, -INFINITY, false};
    }
    if (threadIdx.x == 128) /* there are none */
        set_edits(shared().row, q, b);
}

/* Find the row's first tokens; for all threads. */
__device__ __forceinline__ blocks_found find_first(int64_t b)
{
    row_blocks blocks(b, (int)shared().call.blocks);
    blocks.values = kByY;
    const turn_blocks loaded = blocks.load(0, false);
    if (!shared().call.stored_subtiles)
        return find_in_blocks(blocks, loaded);
    const float bound = blocks.bound();
    return is_rare(__syncthreads_or(needs_tops(blocks, loaded, bound)))
               ? find_by_tops(blocks)
               : find_by_bound(blocks, loaded, bound);
}

/* List the row's first tokens, for all threads; what there is to say of the place in the list that
 * is this thread's number's. */
__device__ __forceinline__ said_words list_row(int64_t b)
{
    const blocks_found found = find_first(b);
    const int count = max(found.count, 0), place = (int)threadIdx.x % CUDA_TOP64;
    put_in_order(kByY, count);
    said_words own = {GUMBEL_ROW_OK, ~0u, __float_as_uint(-INFINITY)};
    if (place < count) {
        const cuda_candidate token = shared().bench.list[shortlist().order[place].token];
        own.id = (uint32_t)token.id;
        own.y = __float_as_uint(token.y);
    }
    if (count == 0)
        own.status = found.flags & GUMBEL_FLAG_NAN ? GUMBEL_ROW_NAN
                     : found.flags                 ? GUMBEL_ROW_INFINITE
                     : found.count < 0             ? CUDA_ROW_UNLISTED
                                                   : GUMBEL_ROW_EMPTY;
    return own;
}

/* Clear what counted the product's CTAs, for a replay. */
__device__ __forceinline__ void end_product(const cuda_request_params &p)
{
    if (blockIdx.x == 0 && threadIdx.x == 0 && p.stored_subtiles)
        p.row_thresholds[1] = 0;
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_list_rows(const __grid_constant__ cuda_listed_params p)
{
    const int64_t b = blockIdx.x, batch = p.request.problem.batch;
    const cuda_request_params &call = bring_call(p.request);
    __syncthreads();
    start_list(call.problem, b);
    __syncthreads();
    ptx_wait_for_launch();
    ptx_allow_launch();
    end_product(call);
    const said_words own = list_row(b);
    uint32_t *ids = p.said + batch + b * CUDA_TOP64;
    if (threadIdx.x == 0)
        p.said[b] = own.status;
    if (threadIdx.x < CUDA_TOP64) {
        ids[threadIdx.x] = own.id;
        ids[batch * CUDA_TOP64 + threadIdx.x] = own.y;
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_tell_rows(const __grid_constant__ cuda_told_params p)
{
    const int64_t b = blockIdx.x;
    const cuda_request_params &call = bring_call(p.draw.request);
    __syncthreads();
    start_listed(call.problem, b);
    start_list(call.problem, b);
    exchange e(p.exchange);
    __syncthreads();
    ptx_wait_for_launch();
    e.read_ns = ptx_read_globaltimer();
    end_product(call);
    if (threadIdx.x == kThreads - 1)
        doubt_row(p.draw, b);
    heard_lists lists{e, list_row(b)};
    if (!e.failed)
        lists.say(b);
    draw_listed(p.draw, lists, b);
    if (threadIdx.x / 32 == kWarps - 1)
        e.leave();
}
