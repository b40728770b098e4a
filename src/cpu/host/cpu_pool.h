/* SPDX-License-Identifier: Apache-2.0
 *
 * The device's own threads: a parallel-for that runs one job at a time.
 */
#ifndef GUMBEL_CPU_POOL_H
#define GUMBEL_CPU_POOL_H

#include "gumbel/gumbel.h"

typedef struct cpu_pool cpu_pool;

/* Start threads - 1 threads, for so many processors; NULL where that fails. */
cpu_pool *cpu_pool_open(int32_t threads, int32_t cpus);
void cpu_pool_close(cpu_pool *pool);

/* Run task(argument, i) for i in [0, threads), i = 0 on the caller's thread. 0, with nothing run,
 * where another job is under way, or in a child of fork(), which has no threads but its own. */
int cpu_pool_run(cpu_pool *pool, gumbel_task task, void *argument);

#endif
