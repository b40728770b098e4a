/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "decoder/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct pool {
    pid_t process;      /* the owner of the threads */
    pthread_t *threads; /* [started] */
    int32_t started;
    pthread_mutex_t lock;
    pthread_cond_t job_given;
    pthread_cond_t job_done;
    /* The job, under `lock` but for `next`. */
    uint64_t job; /* number of jobs, so that a thread runs each job once */
    int32_t busy; /* threads that have not finished the job */
    bool closing;
    int32_t count;
    gumbel_task task;
    void *argument;
    atomic_int next; /* the next item to run */
};

/* True in a child of fork(), which has only the calling thread, and locks that may stay locked. */
static bool is_orphaned(const pool *p) { return getpid() != p->process; }

static void run_items(pool *p)
{
    for (;;) {
        int32_t item = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (item >= p->count) {
            return;
        }
        p->task(p->argument, item);
    }
}

static void *run_jobs(void *argument)
{
    pool *p = argument;
    uint64_t done = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->job == done && !p->closing) {
            pthread_cond_wait(&p->job_given, &p->lock);
        }
        if (p->closing) {
            break;
        }
        done = p->job;
        pthread_mutex_unlock(&p->lock);
        run_items(p);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0) {
            pthread_cond_signal(&p->job_done);
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int32_t usable_cpus(void)
{
    cpu_set_t set;
    int32_t count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < POOL_MAX_THREADS ? count : POOL_MAX_THREADS;
}

int pool_new(int32_t threads, pool **result, decoder_error *error)
{
    *result = NULL;
    if (threads < 0 || threads > POOL_MAX_THREADS) {
        return decoder_fail(error, NULL, "threads", "is %d, not in [0, %d]", threads,
                            POOL_MAX_THREADS);
    }
    int32_t wanted = (threads > 0 ? threads : usable_cpus()) - 1;
    pool *p = calloc(1, sizeof *p);
    if (!p || !(p->threads = calloc((size_t)wanted + 1, sizeof *p->threads))) {
        free(p);
        return decoder_fail(error, NULL, "threads", "out of memory");
    }
    p->process = getpid();
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->job_given, NULL);
    pthread_cond_init(&p->job_done, NULL);
    while (p->started < wanted) {
        int problem = pthread_create(&p->threads[p->started], NULL, run_jobs, p);
        if (problem != 0) {
            pool_free(p);
            return decoder_fail(error, NULL, "threads", "cannot start: %s", strerror(problem));
        }
        p->started++;
    }
    *result = p;
    return 0;
}

static void stop_threads(pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->job_given);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->started; i++) {
        pthread_join(p->threads[i], NULL);
    }
    pthread_cond_destroy(&p->job_done);
    pthread_cond_destroy(&p->job_given);
    pthread_mutex_destroy(&p->lock);
}

void pool_free(pool *p)
{
    if (!p) {
        return;
    }
    if (!is_orphaned(p)) {
        stop_threads(p);
    }
    free(p->threads);
    free(p);
}

int32_t pool_threads(const pool *p) { return p->started + 1; }

void pool_run(pool *p, int32_t count, gumbel_task task, void *argument)
{
    if (p->started == 0 || count <= 1 || is_orphaned(p)) {
        for (int32_t i = 0; i < count; i++) {
            task(argument, i);
        }
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->count = count;
    p->task = task;
    p->argument = argument;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    p->busy = p->started;
    p->job++;
    pthread_cond_broadcast(&p->job_given);
    pthread_mutex_unlock(&p->lock);
    run_items(p);
    pthread_mutex_lock(&p->lock);
    while (p->busy > 0) {
        pthread_cond_wait(&p->job_done, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
}
