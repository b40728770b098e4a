/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker of a group: a thread that runs host collectives. Only a GPU knows the fallback rows,
 * so a kernel requests their gather and waits for it (core/ranks/host_collective.h); the worker
 * gathers them by the transport's `blocking_all_gather`. The GPUs of all ranks make the same
 * requests in the same order, as their decisions depend only on data that all of them have.
 */
#define _POSIX_C_SOURCE 200809L
#include "core/fail.h"
#include "ranks/group.h"

#include <inttypes.h>
#include <signal.h>
#include <time.h>

/* Back-off sleep between two polls: the shortest after a request, doubled after each poll without
 * one. */
#define SLEEP_NS_MIN 10000
#define SLEEP_NS_MAX 500000

/* The GPU waits this much longer than the time-out of the worker's gather, so that the worker
 * reports a failure first. */
#define GRACE_MS 1000

/* Runs the gather that the GPU has requested; returns 0 on success. */
static int run_collective(const gumbel_group *group)
{
    char why[GUMBEL_WHY_BYTES] = "";
    const gumbel_transport *t = &group->transport;
    const gumbel_host_collective *c = group->worker.host;
    const void *send = (const void *)(uintptr_t)c->send;
    void *receive = (void *)(uintptr_t)c->receive;
    return t->blocking_all_gather(t->context, NULL, send, receive, (size_t)c->bytes,
                                  group->timeout_ms, why);
}

static void *run_worker(void *argument)
{
    gumbel_group *group = argument;
    gumbel_host_collective *c = group->worker.host;
    struct timespec pause = {0, SLEEP_NS_MIN};
    uint64_t done = 0;
    while (!__atomic_load_n(&group->worker.stop, __ATOMIC_ACQUIRE)) {
        uint64_t requested = __atomic_load_n(&c->requested, __ATOMIC_ACQUIRE);
        if (requested == done) {
            nanosleep(&pause, NULL);
            pause.tv_nsec = 2 * pause.tv_nsec < SLEEP_NS_MAX ? 2 * pause.tv_nsec : SLEEP_NS_MAX;
            continue;
        }
        if (run_collective(group) != 0) {
            __atomic_store_n(&c->failed, 1, __ATOMIC_RELEASE);
            return NULL;
        }
        done = requested;
        __atomic_store_n(&c->done, done, __ATOMIC_RELEASE);
        pause.tv_nsec = SLEEP_NS_MIN;
    }
    return NULL;
}

/* Starts the thread with all signals blocked, so that none of the program's signal handlers runs
 * in it; returns 1 on success. */
static int start_thread(gumbel_group *group)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&group->worker.thread, NULL, run_worker, group);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code == 0;
}

gumbel_status ranks_start_host_worker(gumbel_group *group, gumbel_error *error)
{
    const gumbel_rank_calls *calls = group->device->backend->ranks;
    ranks_host_worker *w = &group->worker;
    int32_t all = 1;
    /* group->frames has room for one int32_t of each rank. */
    int32_t *runs = (int32_t *)(void *)group->frames;
    if (group->transport.blocking_all_gather &&
        calls->create_host_collective(group->device, &w->host, &w->device, NULL) == GUMBEL_OK)
        w->runs = start_thread(group);
    int32_t own = w->runs;
    GUMBEL_FORWARD(ranks_gather(group, &own, runs, sizeof own, error));
    for (int32_t r = 0; r < group->transport.ranks; r++)
        all &= runs[r];
    if (!all)
        ranks_stop_host_worker(group);
    return GUMBEL_OK;
}

void ranks_stop_host_worker(gumbel_group *group)
{
    ranks_host_worker *w = &group->worker;
    if (w->runs) {
        __atomic_store_n(&w->stop, 1, __ATOMIC_RELEASE);
        pthread_join(w->thread, NULL);
    }
    if (w->host)
        group->device->backend->ranks->free_host_collective(group->device, w->host);
    *w = (ranks_host_worker){0};
}

gumbel_host_collective *ranks_get_collective(const gumbel_group *group, int64_t *timeout_ms)
{
    *timeout_ms = group->timeout_ms + GRACE_MS;
    return group->worker.device;
}

gumbel_status ranks_check_host_worker(gumbel_group *group, gumbel_error *error)
{
    if (!group->worker.runs || !__atomic_load_n(&group->worker.host->failed, __ATOMIC_ACQUIRE))
        return GUMBEL_OK;
    group->broken = 1;
    return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group",
                       "rows were not exchanged within %" PRId64 " ms", group->timeout_ms);
}
