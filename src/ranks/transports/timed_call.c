/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "ranks/transports/timed_call.h"

#include <signal.h>
#include <time.h>

static void destroy_locks(ranks_timed_call *call)
{
    pthread_cond_destroy(&call->changed);
    pthread_mutex_destroy(&call->lock);
}

static void *run_call(void *argument)
{
    ranks_timed_call *call = argument;
    call->work(call->argument);
    pthread_mutex_lock(&call->lock);
    int abandoned = call->abandoned;
    call->done = 1;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->lock);
    if (abandoned) {
        destroy_locks(call);
        call->drop(call->argument);
    }
    return NULL;
}

static int start_thread(pthread_t *thread, ranks_timed_call *call)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread, NULL, run_call, call);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

static struct timespec time_after(int64_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

ranks_call_end ranks_call_within(ranks_timed_call *call, int64_t timeout_ms,
                                 void (*work)(void *argument), void (*drop)(void *argument),
                                 void *argument)
{
    pthread_condattr_t clock;
    pthread_t thread;
    *call = (ranks_timed_call){.work = work, .drop = drop, .argument = argument};
    pthread_mutex_init(&call->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&call->changed, &clock);
    pthread_condattr_destroy(&clock);
    const struct timespec until = time_after(timeout_ms);
    if (start_thread(&thread, call) != 0) {
        destroy_locks(call);
        return RANKS_CALL_NOT_STARTED;
    }
    int code = 0;
    pthread_mutex_lock(&call->lock);
    while (!call->done && code == 0)
        code = pthread_cond_timedwait(&call->changed, &call->lock, &until);
    int abandoned = call->abandoned = !call->done;
    pthread_mutex_unlock(&call->lock);
    if (abandoned) { /* from here on `call` is the other thread's */
        pthread_detach(thread);
        return RANKS_CALL_ABANDONED;
    }
    pthread_join(thread, NULL);
    destroy_locks(call);
    return RANKS_CALL_DONE;
}
