/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "dist/transports/within.h"

#include <signal.h>
#include <time.h>

static void end(ranks_timed_call *s)
{
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
}

static void *run(void *shared)
{
    ranks_timed_call *s = shared;
    s->work(s->argument);
    pthread_mutex_lock(&s->lock);
    int left = s->left;
    s->done = 1;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (left) {
        end(s);
        s->drop(s->argument);
    }
    return NULL;
}

static int start(pthread_t *thread, ranks_timed_call *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread, NULL, run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

static struct timespec time_in(int64_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

ranks_call_end ranks_call_within(ranks_timed_call *shared, int64_t timeout_ms, void (*work)(void *argument),
                       void (*drop)(void *argument), void *argument)
{
    pthread_condattr_t clock;
    pthread_t thread;
    *shared = (ranks_timed_call){.work = work, .drop = drop, .argument = argument};
    pthread_mutex_init(&shared->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&shared->changed, &clock);
    pthread_condattr_destroy(&clock);
    const struct timespec until = time_in(timeout_ms);
    if (start(&thread, shared) != 0) {
        end(shared);
        return RANKS_CALL_NOT_STARTED;
    }
    int code = 0;
    pthread_mutex_lock(&shared->lock);
    while (!shared->done && code == 0)
        code = pthread_cond_timedwait(&shared->changed, &shared->lock, &until);
    int left = shared->left = !shared->done;
    pthread_mutex_unlock(&shared->lock);
    if (left) { /* what is shared is the other thread's from here on */
        pthread_detach(thread);
        return RANKS_CALL_ABANDONED;
    }
    pthread_join(thread, NULL);
    end(shared);
    return RANKS_CALL_DONE;
}
