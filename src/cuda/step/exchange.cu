/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   an all-gather among GPUs that reach each other's memory, and for summaries the end of a
 *        draw beside: merged over all ranks and written out.
 * COST   16 bytes a word and pair of ranks over the link; of a few words one latency of it, some
 *        2 us, and a launch.
 * MAP    words by threads, of all CTAs in turns; of summaries a warp a draw, lanes 0..11 its words.
 * SYNC   A thread stores its words into the mailboxes of all others before it looks for theirs. It
 *        waits for the threads of the same number on other GPUs: all CTAs run at once, as they are
 *        few, and the wait is counted in time besides. Where that is over the mailbox is spent: no
 *        later exchange waits, and outputs say that nothing was drawn.
 *        The last CTA to end moves the number of exchanges on, which all have read by then.
 */
#include "cuda/common/merge.cuh"
#include "cuda/common/cuda_params.h"
#include "cuda/common/ptx.cuh"

namespace
{

constexpr int kThreads = CUDA_EXCHANGE_THREADS;
constexpr int kSummaryWords = sizeof(gumbel_summary) / sizeof(uint32_t);
constexpr int kLooks = 256; /* between two looks at the clock */

struct exchange {
    const cuda_exchange_params &p;
    gumbel_mailbox *own;
    uint32_t tag;
    uint64_t begun;
    bool failed;

    __device__ explicit exchange(const cuda_exchange_params &params)
        : p(params), own(params.mailboxes[params.rank]),
          tag(*(volatile uint32_t *)&own->exchanges + 1), begun(ptx_now_ns()),
          failed(*(volatile uint32_t *)&own->failed != 0)
    {
    }

    /* Where rank `from` says word i to rank `to`. */
    __device__ uint64_t *place(int32_t to, int32_t from, int64_t i) const
    {
        uint64_t *words = (uint64_t *)(p.mailboxes[to] + 1);
        return words + ((tag % 2) * (int64_t)p.ranks + from) * p.room + i;
    }

    __device__ void say(int64_t i, uint32_t word) const
    {
        for (int32_t r = 0; r < p.ranks; r++)
            if (r != p.rank)
                ptx_tell_8(place(r, p.rank, i), (uint64_t)tag << 32 | word);
    }

    __device__ __noinline__ void give_up(int32_t missing)
    {
        failed = true;
        if (atomicCAS(&own->failed, 0u, 1u + missing) == 0u)
            *(volatile uint32_t *)p.failed = 1u + missing;
    }

    /* Word i of rank r; all bits are set where it does not come in time. */
    __device__ uint32_t hear(int32_t r, int64_t i)
    {
        const uint64_t *at = place(p.rank, r, i);
        for (int looks = 1; !failed; looks++) {
            uint64_t found = ptx_hear_8(at);
            if ((uint32_t)(found >> 32) == tag)
                return (uint32_t)found;
            if (looks % kLooks != 0)
                continue;
            if (*(volatile uint32_t *)&own->failed)
                failed = true;
            else if (ptx_now_ns() - begun > p.timeout_ns)
                give_up(r);
        }
        return ~0u;
    }

    /* By all threads of a CTA. */
    __device__ void end() const
    {
        __syncthreads();
        if (threadIdx.x != 0)
            return;
        __threadfence();
        if (atomicAdd(&own->ended, 1u) + 1 < gridDim.x)
            return;
        own->ended = 0;
        own->exchanges = tag;
    }
};

/* Draw `at` of all ranks, merged, by a warp; every lane gets it. */
__device__ gumbel_summary merge_ranks(exchange &e, int64_t at, uint32_t *words)
{
    const int lane = threadIdx.x % 32;
    const int64_t first = at * kSummaryWords;
    gumbel_summary whole;
    gumbel_summary_empty(&whole);
    for (int32_t r = 0; r < e.p.ranks; r++) {
        gumbel_summary said;
        if (lane < kSummaryWords)
            words[lane] = r == e.p.rank ? e.p.words[first + lane] : e.hear(r, first + lane);
        __syncwarp();
        memcpy(&said, words, sizeof said);
        __syncwarp();
        gumbel_summary_merge_any(&whole, &said);
    }
    if (__any_sync(~0u, e.failed)) {
        gumbel_summary_empty(&whole);
        whole.flags = GUMBEL_FLAG_NAN;
    }
    return whole;
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_exchange_words(const __grid_constant__ cuda_exchange_params p)
{
    const int64_t stride = (int64_t)gridDim.x * kThreads;
    const int64_t begin = (int64_t)blockIdx.x * kThreads + threadIdx.x;
    ptx_wait_for_launch();
    exchange e(p);
    for (int64_t i = begin; i < p.count && !e.failed; i += stride)
        e.say(i, p.words[i]);
    for (int32_t r = 0; r < p.ranks; r++)
        for (int64_t i = begin; i < p.count; i += stride)
            p.received[r * p.stride + i] = r == p.rank ? p.words[i] : e.hear(r, i);
    e.end();
}

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_exchange_summaries(const __grid_constant__ cuda_exchange_params p)
{
    __shared__ uint32_t words[kThreads / 32][kSummaryWords];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = gridDim.x * kThreads / 32;
    const int64_t begin = (int64_t)warp * gridDim.x + blockIdx.x;
    const int64_t draws = p.count / kSummaryWords, samples = p.num_samples;
    ptx_wait_for_launch();
    exchange e(p);
    for (int64_t at = begin; at < draws && !e.failed; at += warps)
        if (lane < kSummaryWords)
            e.say(at * kSummaryWords + lane, p.words[at * kSummaryWords + lane]);
    ptx_allow_launch();
    for (int64_t at = begin; at < draws; at += warps) {
        gumbel_summary own = merge_ranks(e, at, words[warp]);
        gumbel_summary first = at % samples ? merge_ranks(e, at - at % samples, words[warp]) : own;
        if (lane == 0)
            write_merged(p.output, at, samples, own, first);
    }
    e.end();
}
