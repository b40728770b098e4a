/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "queued_ranks.h"

#include "cuda_support.h"
#include "thread_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct member {
    queued_ranks *place;
    gumbel_transport host;   /* transport of calls */
    gumbel_transport beside; /* transport of host collectives, which run on worker threads */
    CUevent came, left; /* of a queued exchange: this rank's data are ready; it has read all data */
    CUstream stream;    /* of host collectives */
} member;

struct queued_ranks {
    int32_t ranks, refuses;
    _Atomic int collectives;
    thread_ranks *called, *collective;
    member members[THREAD_RANKS_MAX];
};

/* Sent by each rank to all others in an exchange: the address of its data, and its events. */
typedef struct offer {
    const void *send;
    CUevent came, left;
} offer;

static int exchange_on_host(const gumbel_transport *by, const void *send, void *receive,
                            size_t bytes, int64_t timeout_ms, char *why)
{
    return by->all_gather(by->context, NULL, send, receive, bytes, timeout_ms, why);
}

static int all_gather(void *context, void *stream, const void *send, void *receive, size_t bytes,
                      int64_t timeout_ms, char *why)
{
    member *m = context;
    (void)stream;
    return exchange_on_host(&m->host, send, receive, bytes, timeout_ms, why);
}

/* Copies the data of all ranks to `receive`, except data that are already in place. */
static void copy_all(const offer *all, int32_t ranks, void *receive, size_t bytes, CUstream stream)
{
    for (int32_t r = 0; r < ranks; r++) {
        char *to = (char *)receive + (size_t)r * bytes;
        if (all[r].send != to)
            GPU(cuMemcpyDtoDAsync, (CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)all[r].send,
                bytes, stream);
    }
}

/* Queues an exchange. The streams wait for each other's data; the hosts wait only until all ranks
 * have queued their copies. */
static int queue_gather(void *context, void *stream, const void *send, void *receive, size_t bytes,
                        int64_t timeout_ms, char *why)
{
    member *m = context;
    int32_t ranks = m->place->ranks;
    offer all[THREAD_RANKS_MAX];
    const offer own = {send, m->came, m->left};
    GPU(cuEventRecord, m->came, stream);
    if (exchange_on_host(&m->host, &own, all, sizeof own, timeout_ms, why))
        return 1;
    for (int32_t r = 0; r < ranks; r++)
        GPU(cuStreamWaitEvent, stream, all[r].came, 0);
    copy_all(all, ranks, receive, bytes, stream);
    GPU(cuEventRecord, m->left, stream);
    if (exchange_on_host(&m->host, &own, all, sizeof own, timeout_ms, why))
        return 1;
    for (int32_t r = 0; r < ranks; r++)
        GPU(cuStreamWaitEvent, stream, all[r].left, 0);
    return 0;
}

static int wait_for(void *context, void *stream, int64_t timeout_ms, char *why)
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
 * have finished. Fails at once on the rank `refuses`. */
static int gather_blocking(void *context, void *stream, const void *send, void *receive,
                           size_t bytes, int64_t timeout_ms, char *why)
{
    member *m = context;
    queued_ranks *place = m->place;
    offer all[THREAD_RANKS_MAX];
    const offer own = {.send = send};
    (void)stream;
    if (m == &place->members[place->refuses])
        return 1;
    GPU(cuCtxSetCurrent, gpu_context());
    if (exchange_on_host(&m->beside, &own, all, sizeof own, timeout_ms, why))
        return 1;
    copy_all(all, place->ranks, receive, bytes, m->stream);
    GPU(cuStreamSynchronize, m->stream);
    place->collectives += m == place->members;
    return exchange_on_host(&m->beside, &own, all, sizeof own, timeout_ms, why);
}

queued_ranks *queued_ranks_make(int32_t ranks)
{
    queued_ranks *p = make_zeroed(1, sizeof *p);
    int least, greatest;
    p->ranks = ranks;
    p->refuses = THREAD_RANKS_MAX - 1;
    p->called = thread_ranks_make(ranks);
    p->collective = thread_ranks_make(ranks);
    GPU(cuCtxGetStreamPriorityRange, &least, &greatest);
    for (int32_t r = 0; r < ranks; r++) {
        member *m = &p->members[r];
        m->place = p;
        m->host = thread_ranks_transport(p->called, r);
        m->beside = thread_ranks_transport(p->collective, r);
        GPU(cuEventCreate, &m->came, CU_EVENT_DISABLE_TIMING);
        GPU(cuEventCreate, &m->left, CU_EVENT_DISABLE_TIMING);
        GPU(cuStreamCreateWithPriority, &m->stream, CU_STREAM_NON_BLOCKING, greatest);
    }
    return p;
}

void queued_ranks_free(queued_ranks *p)
{
    for (int32_t r = 0; r < p->ranks; r++) {
        GPU(cuEventDestroy, p->members[r].came);
        GPU(cuEventDestroy, p->members[r].left);
        GPU(cuStreamDestroy, p->members[r].stream);
    }
    thread_ranks_free(p->called);
    thread_ranks_free(p->collective);
    free(p);
}

gumbel_transport queued_ranks_transport(queued_ranks *p, int32_t rank)
{
    return (gumbel_transport){.struct_size = sizeof(gumbel_transport),
                              .rank = rank,
                              .ranks = p->ranks,
                              .all_gather = all_gather,
                              .context = &p->members[rank],
                              .stream_all_gather = queue_gather,
                              .wait = wait_for,
                              .blocking_all_gather = gather_blocking};
}

void queued_ranks_refuse(queued_ranks *p, int32_t rank) { p->refuses = rank; }

int queued_ranks_collectives(const queued_ranks *p) { return p->collectives; }
