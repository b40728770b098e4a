/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "dist/transports/within.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

/* Of both threads, freed by the one that leaves last. */
typedef struct shared_work {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*work)(void *), (*drop)(void *);
    void *argument;
    int done, left;
} shared_work;

static void forget(shared_work *s)
{
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void *run(void *shared)
{
    shared_work *s = shared;
    s->work(s->argument);
    pthread_mutex_lock(&s->lock);
    int left = s->left;
    s->done = 1;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (left) {
        s->drop(s->argument);
        forget(s);
    }
    return NULL;
}

static shared_work *make(void)
{
    pthread_condattr_t clock;
    shared_work *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &clock);
    pthread_condattr_destroy(&clock);
    return s;
}

static int start(pthread_t *thread, shared_work *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread, NULL, run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

dist_ended dist_within(int64_t timeout_ms, void (*work)(void *), void (*drop)(void *),
                       void *argument)
{
    struct timespec end;
    pthread_t thread;
    shared_work *s = make();
    if (!s)
        return DIST_NOT_BEGUN;
    s->work = work;
    s->drop = drop;
    s->argument = argument;
    if (start(&thread, s) != 0) {
        forget(s);
        return DIST_NOT_BEGUN;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += (time_t)(timeout_ms / 1000);
    end.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s->lock);
    int code = 0;
    while (!s->done && code == 0)
        code = pthread_cond_timedwait(&s->changed, &s->lock, &end);
    int left = s->left = !s->done;
    pthread_mutex_unlock(&s->lock);
    if (left) {
        pthread_detach(thread);
        return DIST_LEFT;
    }
    pthread_join(thread, NULL);
    forget(s);
    return DIST_ENDED;
}
