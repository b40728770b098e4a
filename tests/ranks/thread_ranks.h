/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that are threads of one process, and a gumbel_transport with their all-gather.
 */
#ifndef TESTS_THREAD_RANKS_H
#define TESTS_THREAD_RANKS_H

#include <gumbel/dist.h>

#define THREAD_RANKS_MAX 64

typedef struct thread_ranks thread_ranks;

/* The state that `ranks` threads share; free it after all threads have ended. */
thread_ranks *thread_ranks_make(int32_t ranks);
void thread_ranks_free(thread_ranks *place);

/* The transport of one rank. */
gumbel_transport thread_ranks_transport(thread_ranks *place, int32_t rank);

/* Runs body(argument, rank) on a thread for each rank, and waits for all. */
void thread_ranks_run(int32_t ranks, void (*body)(void *argument, int32_t rank), void *argument);

#endif
