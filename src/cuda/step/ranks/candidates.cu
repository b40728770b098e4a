/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   rows of a request that are split over ranks, by the first CUDA_TOP64 tokens of each
 *        rank's part: cut, drawn from, and written (listed_row.cuh). A row that these do not tell
 *        is left. Where ranks have mailboxes, they tell each other these tokens in the same launch.
 *        Behind it, rows that were left and drawn from whole are put in their places.
 * COST   a row of R ranks reads 520 R bytes; the order of 64 R tokens by counting, the end of a row
 *        of few tokens; by mailboxes 1032 bytes a row and pair of ranks over the link, and one
 *        latency of it.
 * MAP    a CTA a row, a thread a token; a warp cuts.
 * SMEM   33 KB as a team's (request_shared.cuh), and 12 for lists.
 * SYNC   barriers of the CTA. With mailboxes as in exchange.cu: a CTA says its row before it looks
 *        for others', there are GUMBEL_PEERS_TOLD at most, which run at once, and waits are counted
 *        in time. The next launch may start when all have come, and is told of each row whether it
 *        is left as soon as that is known.
 */
#include "cuda/step/ranks/listed_row.cuh"

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_draw_candidates(const __grid_constant__ cuda_listed_params p)
{
    const int64_t b = blockIdx.x;
    const cuda_request_params &call = bring_call(p.request);
    __syncthreads();
    ptx_wait_for_launch();
    start_listed(call.problem, b);
    if (threadIdx.x == kThreads - 1)
        doubt_row(p, b);
    __syncthreads();
    gathered_lists lists{p};
    draw_listed(p, lists, b);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_tell_candidates(const __grid_constant__ cuda_told_params p)
{
    const int64_t b = blockIdx.x;
    const cuda_request_params &call = bring_call(p.draw.request);
    __syncthreads();
    ptx_wait_for_launch();
    exchange e(p.exchange);
    heard_lists lists{
        e, words_at(p.draw.received, call.problem.batch, b, (int)threadIdx.x % CUDA_TOP64)};
    if (!e.failed)
        lists.say(b);
    start_listed(call.problem, b);
    if (threadIdx.x == kThreads - 1)
        doubt_row(p.draw, b);
    __syncthreads();
    draw_listed(p.draw, lists, b);
    if (threadIdx.x / 32 == kWarps - 1)
        e.leave();
}

/* A CTA puts a row in its place; those behind *p.count have none. */
extern "C" __global__ void __launch_bounds__(CUDA_SCATTER_OUTPUTS_THREADS)
    gumbel_spread_rows(const __grid_constant__ cuda_scatter_outputs_params p)
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

/* What is asked of each row where its first tokens are listed. */
extern "C" __device__ const int32_t gumbel_listed_tokens = CUDA_TOP64;
