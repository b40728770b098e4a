/* SPDX-License-Identifier: Apache-2.0
 *
 * An exchange by mailboxes (core/ranks/peers.h), as the CTAs of a launch go through it.
 */
#ifndef GUMBEL_CUDA_EXCHANGE_CUH
#define GUMBEL_CUDA_EXCHANGE_CUH

#include "core/ranks/peers.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/ptx.cuh"

namespace
{

constexpr int kLooks = 256; /* between two readings of the clock */

/* The most that counts as waited between two readings: a clock that jumps must not use up the
 * time-out. */
constexpr uint64_t kWaitedMost = 100000000; /* nanoseconds */

/* Whether this CTA is the last of its launch; its own writes are seen then. */
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
    gumbel_mailbox *own;
    uint32_t number; /* of this exchange */
    uint32_t tag;
    uint64_t read_ns,
        waited_ns; /* the last reading of the clock; how long this thread has waited */
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

    /* Where rank `from` says word i to rank `to`. */
    __device__ uint64_t *place(int32_t to, int32_t from, int64_t i) const
    {
        uint64_t *words = (uint64_t *)(p.peer_buffers[to] + 1);
        return words + ((number % 2) * (int64_t)p.ranks + from) * p.room + i;
    }

    __device__ void say(int64_t i, uint32_t word) const
    {
        for (int32_t r = 0; r < p.ranks; r++)
            if (r != p.rank)
                ptx_store_relaxed_sys_8(place(r, p.rank, i), (uint64_t)tag << 32 | word);
    }

    /* Tell the host which rank did not answer, and how far each rank has come. */
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

    /* Whether to go on waiting for rank r. */
    __device__ __noinline__ bool keep_waiting(int32_t r)
    {
        const uint64_t now = ptx_read_globaltimer();
        waited_ns += min(now - read_ns, kWaitedMost);
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

    /* Some words of rank r, looked for side by side; all bits are set where one does not come in
     * time. */
    template <int count>
    __device__ void hear(int32_t r, const int64_t (&which)[count], uint32_t (&words)[count])
    {
        for (int looks = 1; !failed; looks++) {
            uint64_t found[count];
            bool all = true;
#pragma unroll
            for (int k = 0; k < count; k++)
                found[k] = ptx_load_relaxed_sys_8(place(p.rank, r, which[k]));
#pragma unroll
            for (int k = 0; k < count; k++) {
                words[k] = (uint32_t)found[k];
                all &= (uint32_t)(found[k] >> 32) == tag;
            }
            if (all)
                return;
            if (looks % kLooks == 0 && !keep_waiting(r))
                break;
        }
#pragma unroll
        for (int k = 0; k < count; k++)
            words[k] = ~0u;
    }

    /* Word i of rank r, likewise. */
    __device__ uint32_t hear(int32_t r, int64_t i)
    {
        const int64_t which[1] = {i};
        uint32_t words[1];
        hear(r, which, words);
        return words[0];
    }

    /* Wait until all ranks have begun, a thread each. */
    __device__ void meet(int r)
    {
        if (r < p.ranks)
            for (int looks = 1; !failed && ptx_load_relaxed_sys_8(&own->begun[r]) < number; looks++)
                if (looks % kLooks == 0 && !keep_waiting(r))
                    break;
    }

    /* Count the exchange, by a thread of the last CTA. */
    __device__ void count()
    {
        own->ended = 0;
        own->tags = tag;
        own->exchanges = number;
    }

    /* By all threads of a CTA, the last of which waits until all ranks have begun. */
    __device__ void end()
    {
        if (!ends_last(&own->ended))
            return;
        meet(threadIdx.x);
        __syncthreads();
        if (threadIdx.x == 0)
            count();
    }

    /* The same by a warp of each CTA that has heard all that it waits for. */
    __device__ void leave()
    {
        const int lane = threadIdx.x % 32;
        uint32_t before = 0;
        if (lane == 0)
            before = atomicAdd(&own->ended, 1u);
        if (__shfl_sync(~0u, before, 0) + 1 != gridDim.x)
            return;
        meet(lane);
        __syncwarp();
        if (lane == 0)
            count();
    }
};

} // namespace

#endif
