/* SPDX-License-Identifier: Apache-2.0
 *
 * The device's threads: a parallel loop that runs one task at a time.
 */
#ifndef GUMBEL_CPU_POOL_H
#define GUMBEL_CPU_POOL_H

#include "gumbel/gumbel.h"

typedef struct cpu_pool cpu_pool;

/* Starts threads - 1 workers on a machine with `cpus` processors; NULL on failure. */
cpu_pool *cpu_pool_open(int32_t threads, int32_t cpus);
void cpu_pool_close(cpu_pool *pool);

/* Runs task(argument, i) for i in [0, threads), i = 0 on the calling thread. Returns 0 and runs
 * nothing if another task is running, or in a child of fork(), where the workers do not exist. */
int cpu_pool_run(cpu_pool *pool, gumbel_task task, void *argument);

#endif
