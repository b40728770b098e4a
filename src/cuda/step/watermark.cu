/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   writes the seed and position of each watermarked draw: of rows, or of nodes of drafts
 *        (drafts/watermark_rows.h).
 * COST   reads the text's tokens in the ring once, 4 bytes each: 16 tokens a thread for 4096. Two
 *        SipHash of up to 10 words by two threads.
 * MAP    a CTA a draw. A thread compares every 256th place of the text with the context.
 * SMEM   the tokens from a node to its root, and the context: 4.2 KB.
 * SYNC   all threads wait until the path is gathered, until the context is loaded, and until all
 *        places are compared. The launch after this one may start before it ends.
 */
#include "drafts/watermark_rows.h"
#include "cuda/common/ptx.cuh"
#include "cuda/policy/cuda_policy.h"

namespace
{

constexpr int kWatermarkThreads = CUDA_WATERMARK_THREADS;

/* Writes the tokens from a node up to its root to path[M - 1], by all threads; sets *depth to
 * their number, or to -1 if a parent is invalid. */
__device__ __forceinline__ void
gather_path(const gumbel_draft &d, const gumbel_watermark_draw &draw, int32_t *path, int32_t *depth)
{
    if (d.parents) {
        if (threadIdx.x == 0)
            *depth = gumbel_gather_path(&d, &draw, path);
        return;
    }
    for (int32_t i = threadIdx.x; i < draw.node; i += kWatermarkThreads)
        path[i] = d.tokens[draw.first_row + draw.node - i];
    if (threadIdx.x == 0)
        *depth = draw.node;
}

/* Loads the newest `length` tokens of the text, and returns whether the text has all of them, and
 * has them at its end alone, by all threads. */
__device__ __forceinline__ bool is_context_new(const gumbel_row_text &text, int32_t length,
                                               int32_t *context)
{
    const int32_t thread = threadIdx.x;
    if (length == 0 || text.count < length)
        return false;
    if (thread < length)
        context[thread] = gumbel_text_token(&text, thread);
    __syncthreads();
    bool repeats = false;
    for (int64_t i = 1 + thread; i + length <= text.count && !repeats; i += kWatermarkThreads)
        repeats = gumbel_text_has_context(&text, context, length, i);
    return !__syncthreads_or(repeats);
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_WATERMARK_THREADS)
    gumbel_watermark_draws_of_rows(const __grid_constant__ gumbel_watermark_call c)
{
    __shared__ int32_t path[GUMBEL_NODES_MAX], context[GUMBEL_CONTEXT_MAX], depth;
    const int64_t b = blockIdx.x;
    const gumbel_watermark &w = c.watermark;
    ptx_wait_for_launch();
    ptx_allow_launch();
    const gumbel_watermark_draw draw = gumbel_watermark_draw_of_row(&c, b);
    const int32_t *last_draft = path;
    int32_t drafts = w.num_drafts, step = 1;
    if (draw.slot >= 0 && c.with_nodes) {
        gather_path(c.drafts.draft, draw, path, &depth);
        __syncthreads();
        drafts = depth;
    } else if (drafts > 0) {
        last_draft = w.drafts + b * w.draft_stride + drafts - 1;
        step = -1;
    }
    if (draw.slot < 0 || drafts < 0) {
        if (threadIdx.x == 0)
            gumbel_store_no_watermark(&c, b);
        return;
    }
    const gumbel_row_key key = gumbel_key_of_slot(&w, draw.slot);
    const gumbel_row_text text =
        gumbel_text_of_slot(&c.recent, draw.slot, key.text_start, last_draft, step, drafts);
    const bool is_new = is_context_new(text, key.length, context);
    if (threadIdx.x == 0)
        gumbel_store_draw_position(&c, b, &draw, &key, drafts, context, is_new);
    if (threadIdx.x == 32 && draw.node == 0)
        gumbel_store_draw_seed(&c, &draw, &key);
}
