/* SPDX-License-Identifier: Apache-2.0
 *
 * Errands: what a GPU alone knows to be needed is gathered by a thread of the group's, over the
 * transport's second way, while the GPU waits for it (core/ranks/errands.h). All ranks' GPUs ask
 * for the same, in the same order, as they ask by what all of them have.
 */
#define _POSIX_C_SOURCE 200809L
#include "core/fail.h"
#include "dist/group.h"

#include <inttypes.h>
#include <signal.h>
#include <time.h>

/* Between two looks at what is asked: soon again behind an errand, and seldom where there was none
 * for long. */
#define PAUSE_LEAST_NS 10000
#define PAUSE_MOST_NS  500000

/* Beyond the time-out of an exchange, in which its thread says that it failed. */
#define GRACE_MS 1000

/* The exchange that the GPU asks for; 0 where it is done. */
static int run_errand(const gumbel_group *group)
{
    char why[GUMBEL_WHY_BYTES] = "";
    const gumbel_transport *t = &group->transport;
    const gumbel_host_collective *e = group->errands.here;
    const void *send = (const void *)(uintptr_t)e->send;
    void *receive = (void *)(uintptr_t)e->receive;
    return t->aside(t->context, NULL, send, receive, (size_t)e->bytes, group->timeout_ms, why);
}

static void *run_errands(void *argument)
{
    gumbel_group *group = argument;
    gumbel_host_collective *e = group->errands.here;
    struct timespec pause = {0, PAUSE_LEAST_NS};
    uint64_t done = 0;
    while (!__atomic_load_n(&group->errands.stop, __ATOMIC_ACQUIRE)) {
        uint64_t asked = __atomic_load_n(&e->asked, __ATOMIC_ACQUIRE);
        if (asked == done) {
            nanosleep(&pause, NULL);
            pause.tv_nsec = 2 * pause.tv_nsec < PAUSE_MOST_NS ? 2 * pause.tv_nsec : PAUSE_MOST_NS;
            continue;
        }
        if (run_errand(group) != 0) {
            __atomic_store_n(&e->failed, 1, __ATOMIC_RELEASE);
            return NULL;
        }
        done = asked;
        __atomic_store_n(&e->done, done, __ATOMIC_RELEASE);
        pause.tv_nsec = PAUSE_LEAST_NS;
    }
    return NULL;
}

/* Start a thread that gets no signals of the program's. */
static int start(gumbel_group *group)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&group->errands.thread, NULL, run_errands, group);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code == 0;
}

gumbel_status ranks_start_host_worker(gumbel_group *group, gumbel_error *error)
{
    const gumbel_rank_calls *calls = group->device->backend->ranks;
    ranks_host_worker *e = &group->errands;
    int32_t all = 1;
    /* What ranks say is no larger than a frame. */
    int32_t *can = (int32_t *)(void *)group->frames;
    if (group->transport.aside &&
        calls->make_errand(group->device, &e->here, &e->there, NULL) == GUMBEL_OK)
        e->run = start(group);
    int32_t own = e->run;
    GUMBEL_FORWARD(ranks_gather(group, &own, can, sizeof own, error));
    for (int32_t r = 0; r < group->transport.ranks; r++)
        all &= can[r];
    if (!all)
        ranks_stop_host_worker(group);
    return GUMBEL_OK;
}

void ranks_stop_host_worker(gumbel_group *group)
{
    ranks_host_worker *e = &group->errands;
    if (e->run) {
        __atomic_store_n(&e->stop, 1, __ATOMIC_RELEASE);
        pthread_join(e->thread, NULL);
    }
    if (e->here)
        group->device->backend->ranks->free_errand(group->device, e->here);
    *e = (ranks_host_worker){0};
}

gumbel_host_collective *ranks_get_collective(const gumbel_group *group, int64_t *timeout_ms)
{
    *timeout_ms = group->timeout_ms + GRACE_MS;
    return group->errands.there;
}

gumbel_status ranks_check_host_worker(gumbel_group *group, gumbel_error *error)
{
    if (!group->errands.run || !__atomic_load_n(&group->errands.here->failed, __ATOMIC_ACQUIRE))
        return GUMBEL_OK;
    group->broken = 1;
    return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group",
                       "rows were not exchanged within %" PRId64 " ms", group->timeout_ms);
}
