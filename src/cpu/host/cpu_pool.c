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

/* A worker polls for the next task this long before it sleeps. A wake-up costs about as much, and a
 * decode step calls again sooner. With more threads than processors a worker sleeps at once, as it
 * would poll on the processor that another one waits for. */
#define SPIN_NANOSECONDS 50000

struct cpu_pool {
    pid_t process; /* of the workers */
    int32_t threads;
    int64_t spin;         /* nanoseconds of polling before sleep */
    pthread_t *workers;   /* [threads - 1] */
    pthread_mutex_t busy; /* held while a task runs */
    pthread_mutex_t lock; /* guards `wake` */
    pthread_cond_t wake;
    atomic_uint task_count; /* tasks published so far */
    atomic_int closing;
    atomic_int started; /* numbers the workers */
    atomic_int running; /* workers that have not finished the task */
    gumbel_task task;
    void *argument;
};

/* Whether this process is a child of fork(). A child has no workers, and its copies of the locks
 * may be held for ever. Each call compares process ids, as a fork() handler would be global
 * state. */
static int is_forked_child(const cpu_pool *pool) { return getpid() != pool->process; }

static int64_t read_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until more than `seen` tasks are published; returns the new count. */
static unsigned wait_for_task(cpu_pool *pool, unsigned seen)
{
    unsigned current;
    for (int64_t until = read_clock() + pool->spin; read_clock() < until; pause_cpu())
        if ((current = atomic_load_explicit(&pool->task_count, memory_order_acquire)) != seen)
            return current;
    pthread_mutex_lock(&pool->lock);
    while ((current = atomic_load_explicit(&pool->task_count, memory_order_acquire)) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    return current;
}

static void *run_worker(void *argument)
{
    cpu_pool *pool = argument;
    int32_t index = atomic_fetch_add(&pool->started, 1) + 1;
    GUMBEL_ASSERT(index >= 1 && index < pool->threads);
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_task(pool, seen);
        if (atomic_load(&pool->closing))
            return NULL;
        pool->task(pool->argument, index);
        atomic_fetch_sub_explicit(&pool->running, 1, memory_order_release);
    }
}

/* Publishes a task and wakes sleeping workers. */
static void publish_task(cpu_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->task_count, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

static void free_pool(cpu_pool *pool)
{
    free(pool->workers);
    free(pool);
}

static void stop_workers(cpu_pool *pool, int32_t workers)
{
    atomic_store(&pool->closing, 1);
    publish_task(pool);
    for (int32_t i = 0; i < workers; i++)
        pthread_join(pool->workers[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->busy);
    free_pool(pool);
}

cpu_pool *cpu_pool_open(int32_t threads, int32_t cpus)
{
    GUMBEL_ASSERT(threads >= 2);
    cpu_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->process = getpid();
    pool->threads = threads;
    pool->spin = threads <= cpus ? SPIN_NANOSECONDS : 0;
    pool->workers = calloc((size_t)threads, sizeof *pool->workers);
    pthread_mutex_init(&pool->busy, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (int32_t i = 0; i < threads - 1; i++)
        if (!pool->workers || pthread_create(&pool->workers[i], NULL, run_worker, pool) != 0) {
            stop_workers(pool, pool->workers ? i : 0);
            return NULL;
        }
    return pool;
}

void cpu_pool_close(cpu_pool *pool)
{
    if (is_forked_child(pool))
        free_pool(pool);
    else
        stop_workers(pool, pool->threads - 1);
}

int cpu_pool_run(cpu_pool *pool, gumbel_task task, void *argument)
{
    if (is_forked_child(pool) || pthread_mutex_trylock(&pool->busy) != 0)
        return 0;
    GUMBEL_ASSERT(atomic_load(&pool->running) == 0);
    pool->task = task;
    pool->argument = argument;
    atomic_store(&pool->running, pool->threads - 1);
    publish_task(pool);
    task(argument, 0);
    /* Workers finish within one claim of each other; after the spin, yield the processor. */
    int64_t until = read_clock() + pool->spin;
    while (atomic_load_explicit(&pool->running, memory_order_acquire) > 0) {
        if (read_clock() < until)
            pause_cpu();
        else
            sched_yield();
    }
    pthread_mutex_unlock(&pool->busy);
    return 1;
}
