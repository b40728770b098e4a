/* SPDX-License-Identifier: Apache-2.0
 *
 * An exchange by peer buffers (core/ranks/peers.h), by the CTAs of a launch.
 */
#ifndef GUMBEL_CUDA_EXCHANGE_CUH
#define GUMBEL_CUDA_EXCHANGE_CUH

#include "core/ranks/peers.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/ptx.cuh"

namespace
{

constexpr int kPolls = 256; /* between two readings of the clock */

/* Maximum time added to the waited time between two readings, so that a jump of the clock does not
 * use up the time-out. */
constexpr uint64_t kWaitedMax = 100000000; /* nanoseconds */

/* Whether this CTA is the last of its launch to end. All CTAs of the launch see its writes. */
__device__ bool ends_last(uint32_t *ended)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(ended, 1u) + 1 == gridDim.x;
    }
    __syncthreads();
    return last;
}

struct exchange {
    const cuda_exchange_params &p;
    gumbel_peer_buffer *own;
    uint32_t number; /* of this exchange */
    uint32_t tag;
    uint64_t read_ns,
        waited_ns; /* the last reading of the clock; the time that this thread has waited */
    bool failed;

    __device__ explicit exchange(const cuda_exchange_params &params)
        : p(params), own(params.peer_buffers[params.rank]),
          number(*(volatile uint32_t *)&own->exchanges + 1),
          tag(*(volatile uint32_t *)&own->tags + 1), read_ns(ptx_read_globaltimer()), waited_ns(0),
          failed(*(volatile uint32_t *)&own->failed != 0)
    {
        const int r = threadIdx.x;
        if (blockIdx.x == 0 && r < p.ranks && !failed)
            ptx_store_relaxed_sys_8(&p.peer_buffers[r]->begun[p.rank], number);
    }

    /* Address of word i that rank `from` sends to rank `to`. */
    __device__ uint64_t *find_word(int32_t to, int32_t from, int64_t i) const
    {
        uint64_t *words = (uint64_t *)(p.peer_buffers[to] + 1);
        return words + ((number % 2) * (int64_t)p.ranks + from) * p.room + i;
    }

    __device__ void send_word(int64_t i, uint32_t word) const
    {
        for (int32_t r = 0; r < p.ranks; r++)
            if (r != p.rank)
                ptx_store_relaxed_sys_8(find_word(r, p.rank, i), (uint64_t)tag << 32 | word);
    }

    /* Reports to the host which rank timed out, and the exchange that each rank is in. */
    __device__ void report_failure(int32_t r) const
    {
        volatile gumbel_peer_report *report = p.report;
        report->exchange = number;
        report->waited_ns = waited_ns;
        for (int32_t i = 0; i < p.ranks; i++)
            report->begun[i] = ptx_load_relaxed_sys_8(&own->begun[i]);
        __threadfence_system();
        report->failed = 1u + r;
    }

    /* Whether to continue to wait for rank r. */
    __device__ __noinline__ bool keep_waiting(int32_t r)
    {
        const uint64_t now = ptx_read_globaltimer();
        waited_ns += min(now - read_ns, kWaitedMax);
        read_ns = now;
        if (*(volatile uint32_t *)&own->failed) {
            failed = true;
        } else if (waited_ns > p.timeout_ns) {
            failed = true;
            if (atomicCAS(&own->failed, 0u, 1u + r) == 0u)
                report_failure(r);
        }
        return !failed;
    }

    /* Receives some words of rank r, polled together; 0xffffffff if one does not arrive in time. */
    template <int count>
    __device__ void receive_words(int32_t r, const int64_t (&which)[count],
                                  uint32_t (&words)[count])
    {
        for (int polls = 1; !failed; polls++) {
            uint64_t found[count];
            bool all = true;
#pragma unroll
            for (int k = 0; k < count; k++)
                found[k] = ptx_load_relaxed_sys_8(find_word(p.rank, r, which[k]));
#pragma unroll
            for (int k = 0; k < count; k++) {
                words[k] = (uint32_t)found[k];
                all &= (uint32_t)(found[k] >> 32) == tag;
            }
            if (all)
                return;
            if (polls % kPolls == 0 && !keep_waiting(r))
                break;
        }
#pragma unroll
        for (int k = 0; k < count; k++)
            words[k] = ~0u;
    }

    /* Receives word i of rank r. */
    __device__ uint32_t receive_word(int32_t r, int64_t i)
    {
        const int64_t which[1] = {i};
        uint32_t words[1];
        receive_words(r, which, words);
        return words[0];
    }

    /* Waits until all ranks have begun, with a thread for each rank. */
    __device__ void wait_for_all(int r)
    {
        if (r < p.ranks)
            for (int polls = 1; !failed && ptx_load_relaxed_sys_8(&own->begun[r]) < number; polls++)
                if (polls % kPolls == 0 && !keep_waiting(r))
                    break;
    }

    /* Counts the exchange, by a thread of the last CTA. */
    __device__ void count_exchange()
    {
        own->ended = 0;
        own->tags = tag;
        own->exchanges = number;
    }

    /* Ends the exchange, by all threads of a CTA. The last CTA waits until all ranks have begun. */
    __device__ void end_by_cta()
    {
        if (!ends_last(&own->ended))
            return;
        wait_for_all(threadIdx.x);
        __syncthreads();
        if (threadIdx.x == 0)
            count_exchange();
    }

    /* Ends the exchange, by one warp of each CTA, which has received all words that it waits
     * for. */
    __device__ void end_by_warp()
    {
        const int lane = threadIdx.x % 32;
        uint32_t before = 0;
        if (lane == 0)
            before = atomicAdd(&own->ended, 1u);
        if (__shfl_sync(~0u, before, 0) + 1 != gridDim.x)
            return;
        wait_for_all(lane);
        __syncwarp();
        if (lane == 0)
            count_exchange();
    }
};

} // namespace

#endif
