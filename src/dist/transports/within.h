/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of other libraries' that may wait for ever, made on a thread that can be left behind.
 */
#ifndef GUMBEL_DIST_WITHIN_H
#define GUMBEL_DIST_WITHIN_H

#include <pthread.h>
#include <stdint.h>

typedef enum ranks_call_end {
    RANKS_CALL_DONE,     /* the work is done, and what it wrote can be read */
    RANKS_CALL_ABANDONED,      /* it goes on: its argument is the thread's, which drops it in the end */
    RANKS_CALL_NOT_STARTED, /* there is no thread */
} ranks_call_end;

/* Of both threads; it lies in what the argument points at, and needs not be set. */
typedef struct ranks_timed_call {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*work)(void *argument), (*drop)(void *argument);
    void *argument;
    int done, left;
} ranks_timed_call;

/* Run `work` on a thread that gets no signals of the program's, and wait for it `timeout_ms` at
 * most. Work that is left calls `drop` with its argument when it is done, and before touches
 * nothing but that. */
ranks_call_end ranks_call_within(ranks_timed_call *shared, int64_t timeout_ms, void (*work)(void *argument),
                       void (*drop)(void *argument), void *argument);

#endif
