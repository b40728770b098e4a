/* SPDX-License-Identifier: Apache-2.0
 *
 * A handful of threads that share the items of one job.
 */
#ifndef DECODER_POOL_H
#define DECODER_POOL_H

#include <stdint.h>

#include "decoder/error.h"
#include "gumbel/gumbel.h"

#define POOL_MAX_THREADS 256

typedef struct pool pool;

/* pool_new(): start `threads` - 1 threads; the caller of pool_run() is the last one.
 *  threads  1..POOL_MAX_THREADS; 0: the CPUs that this process may use
 *  returns  0; -1 with `error` filled. Release it with pool_free(). */
int pool_new(int32_t threads, pool **result, decoder_error *error);

/* Stop the threads and free. NULL is allowed. */
void pool_free(pool *p);

/* How many threads share a job, the caller's included. */
int32_t pool_threads(const pool *p);

/* pool_run(): call task(argument, i) for each i in [0, count), in any order, and return when all
 * have returned. One call at a time, and none from within a task. In a child of fork() the caller's
 * thread does it all. */
void pool_run(pool *p, int32_t count, gumbel_task task, void *argument);

#endif /* DECODER_POOL_H */
