/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cpu/host/cpu_pool.h"

#include "core/fail.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* A worker looks for the next job this long before it sleeps: a wake-up costs about as much, and a
 * decode step calls again sooner. Where there are more threads than processors it sleeps at once:
 * it would look while one that has work waits for its processor. */
#define SPIN_NANOSECONDS 50000

struct cpu_pool {
    pid_t process; /* which has the workers */
    int32_t threads;
    int64_t patience;     /* nanoseconds of looking before a sleep */
    pthread_t *workers;   /* [threads - 1] */
    pthread_mutex_t busy; /* held while a job runs */
    pthread_mutex_t lock; /* guards sleeping and waking */
    pthread_cond_t wake;
    atomic_uint generation; /* counts jobs */
    atomic_int closing;
    atomic_int started; /* hands each worker its number */
    atomic_int running; /* workers that have not finished the job */
    gumbel_task task;
    void *argument;
};

/* Whether this is a child of fork(): it has no workers, and its copies of the locks stand as they
 * stood then, perhaps held for good. The process is asked at each call, so that no handler of
 * fork(), which would be state of the whole program, has to be set. */
static int is_orphaned(const cpu_pool *pool) { return getpid() != pool->process; }

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The generation after `seen`, once there is one. */
static unsigned await_job(cpu_pool *pool, unsigned seen)
{
    unsigned current;
    for (int64_t until = now() + pool->patience; now() < until; relax())
        if ((current = atomic_load_explicit(&pool->generation, memory_order_acquire)) != seen)
            return current;
    pthread_mutex_lock(&pool->lock);
    while ((current = atomic_load_explicit(&pool->generation, memory_order_acquire)) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    return current;
}

static void *work(void *argument)
{
    cpu_pool *pool = argument;
    int32_t index = atomic_fetch_add(&pool->started, 1) + 1;
    GUMBEL_ASSERT(index >= 1 && index < pool->threads);
    unsigned seen = 0;
    for (;;) {
        seen = await_job(pool, seen);
        if (atomic_load(&pool->closing))
            return NULL;
        pool->task(pool->argument, index);
        atomic_fetch_sub_explicit(&pool->running, 1, memory_order_release);
    }
}

/* Publish a new generation and wake who sleeps. */
static void announce(cpu_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

static void release(cpu_pool *pool)
{
    free(pool->workers);
    free(pool);
}

static void stop(cpu_pool *pool, int32_t workers)
{
    atomic_store(&pool->closing, 1);
    announce(pool);
    for (int32_t i = 0; i < workers; i++)
        pthread_join(pool->workers[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->busy);
    release(pool);
}

cpu_pool *cpu_pool_open(int32_t threads, int32_t cpus)
{
    GUMBEL_ASSERT(threads >= 2);
    cpu_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->process = getpid();
    pool->threads = threads;
    pool->patience = threads <= cpus ? SPIN_NANOSECONDS : 0;
    pool->workers = calloc((size_t)threads, sizeof *pool->workers);
    pthread_mutex_init(&pool->busy, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (int32_t i = 0; i < threads - 1; i++)
        if (!pool->workers || pthread_create(&pool->workers[i], NULL, work, pool) != 0) {
            stop(pool, pool->workers ? i : 0);
            return NULL;
        }
    return pool;
}

void cpu_pool_close(cpu_pool *pool)
{
    if (is_orphaned(pool))
        release(pool);
    else
        stop(pool, pool->threads - 1);
}

int cpu_pool_run(cpu_pool *pool, gumbel_task task, void *argument)
{
    if (is_orphaned(pool) || pthread_mutex_trylock(&pool->busy) != 0)
        return 0;
    GUMBEL_ASSERT(atomic_load(&pool->running) == 0);
    pool->task = task;
    pool->argument = argument;
    atomic_store(&pool->running, pool->threads - 1);
    announce(pool);
    task(argument, 0);
    /* Workers end within one claim of each other; past the spin, give the processor away. */
    int64_t until = now() + pool->patience;
    while (atomic_load_explicit(&pool->running, memory_order_acquire) > 0) {
        if (now() < until)
            relax();
        else
            sched_yield();
    }
    pthread_mutex_unlock(&pool->busy);
    return 1;
}
