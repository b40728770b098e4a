/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "queued_ranks.h"

#include "cuda_support.h"
#include "thread_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct member {
    queued_ranks *shared;
    gumbel_transport call_transport;       /* of the thread that makes calls */
    gumbel_transport collective_transport; /* of the worker thread that runs host collectives */
    CUevent data_ready, copies_done; /* of a queued exchange: own data written; all ranks' read */
    CUstream stream;                 /* of host collectives */
} member;

struct queued_ranks {
    int32_t ranks, failing_rank; /* rank whose host collectives fail; -1: none */
    _Atomic int collectives;     /* host collectives that rank 0 has run */
    thread_ranks *call_ranks, *collective_ranks;
    member members[THREAD_RANKS_MAX];
};

/* Each rank sends the others this address of its data, and its events. */
typedef struct rank_data {
    const void *send;
    CUevent data_ready, copies_done;
} rank_data;

static int exchange_on_host(const gumbel_transport *transport, const void *send, void *receive,
                            size_t bytes, int64_t timeout_ms, char *why)
{
    return transport->all_gather(transport->context, NULL, send, receive, bytes, timeout_ms, why);
}

static int all_gather(void *context, void *stream, const void *send, void *receive, size_t bytes,
                      int64_t timeout_ms, char *why)
{
    member *m = context;
    (void)stream;
    return exchange_on_host(&m->call_transport, send, receive, bytes, timeout_ms, why);
}

/* Copies the data of all ranks to `receive`, except data that are already in place. */
static void copy_rank_data(const rank_data *all, int32_t ranks, void *receive, size_t bytes,
                           CUstream stream)
{
    for (int32_t r = 0; r < ranks; r++) {
        char *destination = (char *)receive + (size_t)r * bytes;
        if (all[r].send != destination)
            GPU(cuMemcpyDtoDAsync, (CUdeviceptr)(uintptr_t)destination,
                (CUdeviceptr)(uintptr_t)all[r].send, bytes, stream);
    }
}

/* Queues an exchange. The streams wait for each other's data; the hosts wait only until all ranks
 * have queued their copies. */
static int queue_gather(void *context, void *stream, const void *send, void *receive, size_t bytes,
                        int64_t timeout_ms, char *why)
{
    member *m = context;
    int32_t ranks = m->shared->ranks;
    rank_data all[THREAD_RANKS_MAX];
    const rank_data own = {send, m->data_ready, m->copies_done};
    GPU(cuEventRecord, m->data_ready, stream);
    if (exchange_on_host(&m->call_transport, &own, all, sizeof own, timeout_ms, why))
        return 1;
    for (int32_t r = 0; r < ranks; r++)
        GPU(cuStreamWaitEvent, stream, all[r].data_ready, 0);
    copy_rank_data(all, ranks, receive, bytes, stream);
    GPU(cuEventRecord, m->copies_done, stream);
    if (exchange_on_host(&m->call_transport, &own, all, sizeof own, timeout_ms, why))
        return 1;
    for (int32_t r = 0; r < ranks; r++)
        GPU(cuStreamWaitEvent, stream, all[r].copies_done, 0);
    return 0;
}

static int wait_for_stream(void *context, void *stream, int64_t timeout_ms, char *why)
{
    const struct timespec pause = {0, 100000};
    (void)context;
    for (int64_t waited = 0; gpu_runs(stream); waited++) {
        if (waited / 10 > timeout_ms) {
            snprintf(why, GUMBEL_WHY_BYTES, "queued work did not end in time");
            return 1;
        }
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* Gathers as a host collective does, on a worker thread and its own stream; returns when all ranks
 * have finished. Fails at once on `failing_rank`. */
static int gather_blocking(void *context, void *stream, const void *send, void *receive,
                           size_t bytes, int64_t timeout_ms, char *why)
{
    member *m = context;
    queued_ranks *shared = m->shared;
    rank_data all[THREAD_RANKS_MAX];
    const rank_data own = {.send = send};
    (void)stream;
    if (m - shared->members == shared->failing_rank)
        return 1;
    GPU(cuCtxSetCurrent, gpu_context());
    if (exchange_on_host(&m->collective_transport, &own, all, sizeof own, timeout_ms, why))
        return 1;
    copy_rank_data(all, shared->ranks, receive, bytes, m->stream);
    GPU(cuStreamSynchronize, m->stream);
    shared->collectives += m == shared->members;
    return exchange_on_host(&m->collective_transport, &own, all, sizeof own, timeout_ms, why);
}

queued_ranks *queued_ranks_make(int32_t ranks)
{
    queued_ranks *shared = make_zeroed(1, sizeof *shared);
    int least, greatest;
    shared->ranks = ranks;
    shared->failing_rank = -1;
    shared->call_ranks = thread_ranks_make(ranks);
    shared->collective_ranks = thread_ranks_make(ranks);
    GPU(cuCtxGetStreamPriorityRange, &least, &greatest);
    for (int32_t r = 0; r < ranks; r++) {
        member *m = &shared->members[r];
        m->shared = shared;
        m->call_transport = thread_ranks_transport(shared->call_ranks, r);
        m->collective_transport = thread_ranks_transport(shared->collective_ranks, r);
        GPU(cuEventCreate, &m->data_ready, CU_EVENT_DISABLE_TIMING);
        GPU(cuEventCreate, &m->copies_done, CU_EVENT_DISABLE_TIMING);
        GPU(cuStreamCreateWithPriority, &m->stream, CU_STREAM_NON_BLOCKING, greatest);
    }
    return shared;
}

void queued_ranks_free(queued_ranks *shared)
{
    for (int32_t r = 0; r < shared->ranks; r++) {
        GPU(cuEventDestroy, shared->members[r].data_ready);
        GPU(cuEventDestroy, shared->members[r].copies_done);
        GPU(cuStreamDestroy, shared->members[r].stream);
    }
    thread_ranks_free(shared->call_ranks);
    thread_ranks_free(shared->collective_ranks);
    free(shared);
}

gumbel_transport queued_ranks_transport(queued_ranks *shared, int32_t rank)
{
    return (gumbel_transport){.struct_size = sizeof(gumbel_transport),
                              .rank = rank,
                              .ranks = shared->ranks,
                              .all_gather = all_gather,
                              .context = &shared->members[rank],
                              .stream_all_gather = queue_gather,
                              .wait = wait_for_stream,
                              .blocking_all_gather = gather_blocking};
}

void queued_ranks_fail_collectives(queued_ranks *shared, int32_t rank)
{
    shared->failing_rank = rank;
}

int queued_ranks_count_collectives(const queued_ranks *shared) { return shared->collectives; }
