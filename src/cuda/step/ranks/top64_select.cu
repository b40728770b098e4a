/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Selects the top-64 candidates of each row of a shard, from few blocks
 *        (truncated_blocks.cuh), after a product that stores its logits and the maxima of their
 *        blocks. With peer buffers, the same launch exchanges the candidates and draws
 *        (top64_row.cuh). A row that few blocks do not serve becomes a fallback row.
 * COST   A row's block maxima and some 70 subtiles or blocks; then as top64_draw.cu.
 * MAP    A CTA a row.
 * SMEM   As truncated_blocks.cu, and 12 KB for candidates.
 * SYNC   As top64_draw.cu. Work that does not depend on the product's logits precedes the wait for
 *        the product's end. This is safe: each of the product's CTAs has waited for the previous
 *        launches, which include the last exchange.
 */
#include "cuda/truncated/blocks/truncated_blocks.cuh"
#include "cuda/step/ranks/top64_row.cuh"

namespace
{

/* The order of candidates. */
constexpr logit_values kByY = {1.0f, false};

/* Initialises the selection of row b, by two warps; before a barrier. */
__device__ __forceinline__ void begin_selection(const gumbel_problem &q, int64_t b)
{
    if (threadIdx.x == 96) {
        start_row();
        block_state().required = {CUDA_TOP64, -INFINITY, false};
    }
    if (threadIdx.x == 128) /* no edits */
        set_edits(shared_state().row, q, b);
}

/* Finds the row's leading tokens; for all threads. */
__device__ __forceinline__ found_tokens find_leading(int64_t b)
{
    row_blocks blocks(b, (int)shared_state().call.blocks);
    blocks.values = kByY;
    const loaded_blocks loaded = blocks.load(0, false);
    if (!shared_state().call.stored_subtiles)
        return find_in_blocks(blocks, loaded);
    const float bound = blocks.load_bound();
    return is_rare(__syncthreads_or(needs_tops(blocks, loaded, bound)))
               ? find_by_tops(blocks)
               : find_by_bound(blocks, loaded, bound);
}

/* Selects the row's candidates; for all threads. Returns the candidate of this thread's number. */
__device__ __forceinline__ top64_words select_row(int64_t b)
{
    const found_tokens found = find_leading(b);
    const int count = max(found.count, 0), place = (int)threadIdx.x % CUDA_TOP64;
    sort_shortlist(kByY, count);
    top64_words own = {GUMBEL_ROW_OK, ~0u, __float_as_uint(-INFINITY)};
    if (place < count) {
        const cuda_candidate token =
            shared_state().scratch.list[shortlist_memory().order[place].token];
        own.id = (uint32_t)token.id;
        own.y = __float_as_uint(token.y);
    }
    if (count == 0)
        own.status = found.flags & GUMBEL_FLAG_NAN ? GUMBEL_ROW_NAN
                     : found.flags                 ? GUMBEL_ROW_INFINITE
                     : found.count < 0             ? CUDA_ROW_NOT_SELECTED
                                                   : GUMBEL_ROW_EMPTY;
    return own;
}

/* Resets the counter of the product's CTAs, for replays. */
__device__ __forceinline__ void end_product(const cuda_truncated_params &p)
{
    if (blockIdx.x == 0 && threadIdx.x == 0 && p.stored_subtiles)
        p.row_thresholds[1] = 0;
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_select_top64(const __grid_constant__ cuda_top64_params p)
{
    const int64_t b = blockIdx.x, batch = p.rows.problem.batch;
    const cuda_truncated_params &call = load_call(p.rows);
    __syncthreads();
    begin_selection(call.problem, b);
    __syncthreads();
    ptx_wait_for_launch();
    ptx_allow_launch();
    end_product(call);
    const top64_words own = select_row(b);
    uint32_t *ids = p.candidates + batch + b * CUDA_TOP64;
    if (threadIdx.x == 0)
        p.candidates[b] = own.status;
    if (threadIdx.x < CUDA_TOP64) {
        ids[threadIdx.x] = own.id;
        ids[batch * CUDA_TOP64 + threadIdx.x] = own.y;
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_select_exchange_top64(const __grid_constant__ cuda_top64_exchange_params p)
{
    const int64_t b = blockIdx.x;
    const cuda_truncated_params &call = load_call(p.draw.rows);
    __syncthreads();
    begin_top64_row(call.problem, b);
    begin_selection(call.problem, b);
    exchange e(p.exchange);
    __syncthreads();
    ptx_wait_for_launch();
    e.read_ns = ptx_read_globaltimer();
    end_product(call);
    if (threadIdx.x == kThreads - 1)
        mark_fallback_unknown(p.draw, b);
    received_top64 candidates{e, select_row(b)};
    if (!e.failed)
        candidates.send_row(b);
    draw_row(p.draw, candidates, b);
    if (threadIdx.x / 32 == kWarps - 1)
        e.end_by_warp();
}
