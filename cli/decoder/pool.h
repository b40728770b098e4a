/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread pool that runs one parallel loop at a time.
 */
#ifndef DECODER_POOL_H
#define DECODER_POOL_H

#include <stdint.h>

#include "decoder/error.h"
#include "gumbel/gumbel.h"

#define POOL_MAX_THREADS 256

typedef struct pool pool;

/* pool_new(): starts `threads` - 1 threads; the caller of pool_run() is the last one.
 *  threads  1..POOL_MAX_THREADS; 0: the CPUs available to the process
 *  returns  0; -1 with `error` filled. Release it with pool_free(). */
int pool_new(int32_t threads, pool **result, decoder_error *error);

/* Stops the threads and frees. NULL is allowed. */
void pool_free(pool *p);

/* Number of threads that run a loop, including the caller's. */
int32_t pool_threads(const pool *p);

/* pool_run(): calls task(argument, i) for each i in [0, count), in any order, and returns when all
 * have returned. Calls must not overlap or nest. In a child of fork(), which has no threads of the
 * pool, the caller's thread runs all items. */
void pool_run(pool *p, int32_t count, gumbel_task task, void *argument);

#endif /* DECODER_POOL_H */
