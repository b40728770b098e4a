/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls with a time-out, of functions of other libraries that may wait without end: they run on a
 * thread that can be abandoned.
 */
#ifndef GUMBEL_RANKS_TIMED_CALL_H
#define GUMBEL_RANKS_TIMED_CALL_H

#include <pthread.h>
#include <stdint.h>

typedef enum ranks_call_end {
    RANKS_CALL_DONE,        /* the call is done; its results can be read */
    RANKS_CALL_ABANDONED,   /* the call goes on, and its thread owns the argument */
    RANKS_CALL_NOT_STARTED, /* no thread could be created */
} ranks_call_end;

/* State of both threads, as a part of the argument; no initialisation is required. */
typedef struct ranks_timed_call {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*work)(void *argument), (*drop)(void *argument);
    void *argument;
    int done, abandoned;
} ranks_timed_call;

/* Runs `work` on a thread that gets none of the program's signals, and waits for it at most
 * timeout_ms. Abandoned work calls `drop` with its argument when it is done; until then it may only
 * use the argument. */
ranks_call_end ranks_call_within(ranks_timed_call *call, int64_t timeout_ms,
                                 void (*work)(void *argument), void (*drop)(void *argument),
                                 void *argument);

#endif
