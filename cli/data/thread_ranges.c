/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "thread_ranges.h"

#include <pthread.h>
#include <stdbool.h>

enum { THREADS_MAX = 1024 };

struct thread_task {
    thread_function function;
    void *argument;
    int32_t index;
    int32_t threads;
};

static void *run_task(void *argument)
{
    const struct thread_task *task = argument;

    task->function(task->argument, task->index, task->threads);
    return NULL;
}

void run_on_threads(int32_t threads, thread_function function, void *argument)
{
    static _Thread_local struct thread_task tasks[THREADS_MAX];
    static _Thread_local pthread_t handles[THREADS_MAX];
    static _Thread_local bool started[THREADS_MAX];

    threads = threads < 1 ? 1 : threads > THREADS_MAX ? THREADS_MAX : threads;
    for (int32_t i = 1; i < threads; i++) {
        tasks[i] = (struct thread_task){function, argument, i, threads};
        started[i] = pthread_create(&handles[i], NULL, run_task, &tasks[i]) == 0;
    }
    function(argument, 0, threads);
    for (int32_t i = 1; i < threads; i++) {
        if (started[i]) {
            pthread_join(handles[i], NULL);
        } else {
            run_task(&tasks[i]);
        }
    }
}

struct item_range find_thread_range(int64_t count, int64_t grain, int32_t index, int32_t threads)
{
    const int64_t grains = count / grain + (count % grain != 0);
    const int64_t each = grains / threads;
    const int64_t extra = grains % threads;
    const int64_t first = each * index + (index < extra ? index : extra);
    const int64_t last = first + each + (index < extra);

    return (struct item_range){
        .begin = first * grain < count ? first * grain : count,
        .end = last * grain < count ? last * grain : count,
    };
}
