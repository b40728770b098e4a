/* SPDX-License-Identifier: Apache-2.0
 *
 * The host worker of a group: a thread that gathers fallback rows for its GPU. Only the GPU knows
 * which rows these are, so a kernel requests their gather and waits (core/ranks/host_collective.h);
 * the worker runs the transport's `blocking_all_gather`. The GPUs of all ranks make the same
 * requests in the same order, as these depend only on data that all of them have.
 */
#define _POSIX_C_SOURCE 200809L
#include "core/fail.h"
#include "ranks/group.h"
#include "ranks/transports/clock.h"

#include <signal.h>
#include <time.h>

/* Back-off sleep between two polls: the minimum after a request, doubled by each idle poll. */
#define SLEEP_NS_MIN 10000
#define SLEEP_NS_MAX 500000

/* The GPU waits this much longer than the worker's gather, so that the worker fails first and its
 * reason is reported. */
#define GRACE_MS 1000

/* Runs the gather that the GPU has requested; returns 0 on success. A failure is recorded. */
static int run_collective(gumbel_group *group)
{
    const gumbel_transport *t = &group->transport;
    ranks_host_worker *w = &group->worker;
    const void *send = (const void *)(uintptr_t)w->host->send;
    void *receive = (void *)(uintptr_t)w->host->receive;
    int64_t begin = ranks_now_ms();
    if (t->blocking_all_gather(t->context, NULL, send, receive, (size_t)w->host->bytes,
                               group->timeout_ms, w->why) == 0)
        return 0;
    w->elapsed_ms = ranks_now_ms() - begin;
    __atomic_store_n(&w->failed, 1, __ATOMIC_RELEASE);
    return 1;
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
    int32_t all_have_threads = 1;
    /* group->frames has room for one int32_t of each rank. */
    int32_t *have_threads = (int32_t *)(void *)group->frames;
    if (group->transport.blocking_all_gather &&
        calls->create_host_collective(group->device, &w->host, &w->device, NULL) == GUMBEL_OK)
        w->has_thread = start_thread(group);
    int32_t has_thread = w->has_thread;
    GUMBEL_FORWARD(ranks_gather(group, &has_thread, have_threads, sizeof has_thread, error));
    for (int32_t r = 0; r < group->transport.ranks; r++)
        all_have_threads &= have_threads[r];
    if (!all_have_threads)
        ranks_stop_host_worker(group);
    return GUMBEL_OK;
}

void ranks_stop_host_worker(gumbel_group *group)
{
    ranks_host_worker *w = &group->worker;
    if (w->has_thread) {
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
    const ranks_host_worker *w = &group->worker;
    if (!w->has_thread || !__atomic_load_n(&w->host->failed, __ATOMIC_ACQUIRE))
        return GUMBEL_OK;
    /* Otherwise the GPU has set host->failed, as it waited in vain. */
    if (__atomic_load_n(&w->failed, __ATOMIC_ACQUIRE))
        return ranks_fail_exchange(group, w->elapsed_ms, w->why, error);
    return ranks_fail_exchange(group, group->timeout_ms, "", error);
}
