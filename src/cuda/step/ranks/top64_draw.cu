/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Draws rows from the top-64 candidates of all ranks: truncates, draws, writes outputs
 *        (top64_row.cuh). A row that they do not determine becomes a fallback row. With peer
 *        buffers, one launch exchanges the candidates and draws. A later launch scatters the
 *        outputs of fallback rows, which are drawn from whole rows.
 * COST   A row of R ranks reads 520 R bytes, and sorts 64 R tokens by counting. With peer buffers
 *        1032 bytes a row and pair of ranks over the link, and one latency of it.
 * MAP    A CTA a row, a thread a token; a warp truncates.
 * SMEM   33 KB (truncated_shared.cuh), and 12 KB for candidates.
 * SYNC   Without peer buffers, only threads of one CTA wait for each other. With peer buffers, a
 *        CTA waits for the CTAs of all other ranks that have the same row, as in exchange.cu: it
 *        sends its own candidates before it polls for theirs. At most GUMBEL_PEERS_TOP64_ROWS CTAs
 *        run, all at once, and waits are limited in time. The next launch may start when all words
 *        have arrived, and waits for each row's fallback flag, which is published as soon as it is
 *        known.
 */
#include "cuda/step/ranks/top64_row.cuh"

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_draw_top64(const __grid_constant__ cuda_top64_params p)
{
    const int64_t b = blockIdx.x;
    const cuda_truncated_params &call = load_call(p.rows);
    __syncthreads();
    ptx_wait_for_launch();
    begin_top64_row(call.problem, b);
    if (threadIdx.x == kThreads - 1)
        mark_fallback_unknown(p, b);
    __syncthreads();
    gathered_top64 candidates{p};
    draw_row(p, candidates, b);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_exchange_top64(const __grid_constant__ cuda_top64_exchange_params p)
{
    const int64_t b = blockIdx.x;
    const cuda_truncated_params &call = load_call(p.draw.rows);
    __syncthreads();
    ptx_wait_for_launch();
    exchange e(p.exchange);
    received_top64 candidates{
        e, words_at(p.draw.received, call.problem.batch, b, (int)threadIdx.x % CUDA_TOP64)};
    if (!e.failed)
        candidates.send_row(b);
    begin_top64_row(call.problem, b);
    if (threadIdx.x == kThreads - 1)
        mark_fallback_unknown(p.draw, b);
    __syncthreads();
    draw_row(p.draw, candidates, b);
    if (threadIdx.x / 32 == kWarps - 1)
        e.end_by_warp();
}

/* A CTA scatters a row of outputs; CTAs from *p.count on have none. */
extern "C" __global__ void __launch_bounds__(CUDA_SCATTER_OUTPUTS_THREADS)
    gumbel_scatter_outputs(const __grid_constant__ cuda_scatter_outputs_params p)
{
    ptx_allow_launch();
    ptx_wait_for_launch();
    if ((int32_t)blockIdx.x >= *p.count)
        return;
    const int64_t to = p.list[blockIdx.x];
    for (int i = 0; i < CUDA_SCATTER_OUTPUTS_MAX; i++)
        for (int64_t w = threadIdx.x; w < p.of[i].width; w += CUDA_SCATTER_OUTPUTS_THREADS)
            p.of[i].to[to * p.of[i].width + w] = p.of[i].from[blockIdx.x * p.of[i].width + w];
}

/* The top_k with which each row's candidates are selected. */
extern "C" __device__ const int32_t gumbel_top64_limit = CUDA_TOP64;
