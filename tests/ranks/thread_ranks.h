/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that are threads of one process, and their all-gather, in the form that an engine passes
 * its own.
 */
#ifndef TESTS_THREAD_RANKS_H
#define TESTS_THREAD_RANKS_H

#include <gumbel/dist.h>

#define THREAD_RANKS_MAX 64

typedef struct thread_ranks thread_ranks;

/* A meeting place of `ranks`; free it when all threads are done. */
thread_ranks *thread_ranks_make(int32_t ranks);
void thread_ranks_free(thread_ranks *place);

/* The transport of one rank. */
gumbel_transport thread_ranks_transport(thread_ranks *place, int32_t rank);

/* Run body(argument, rank) on a thread for each rank, and wait for all. */
void thread_ranks_run(int32_t ranks, void (*body)(void *argument, int32_t rank), void *argument);

#endif
