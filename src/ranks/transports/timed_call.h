/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls, with a time-out, of functions of other libraries that may block forever. Each call runs on
 * a thread of its own, which is abandoned on a time-out.
 */
#ifndef GUMBEL_RANKS_TIMED_CALL_H
#define GUMBEL_RANKS_TIMED_CALL_H

#include <pthread.h>
#include <stdint.h>

typedef enum ranks_call_end {
    RANKS_CALL_DONE,        /* the call is done; its results can be read */
    RANKS_CALL_ABANDONED,   /* timed out: the call still runs, and its thread owns the argument */
    RANKS_CALL_NOT_STARTED, /* no thread could be created */
} ranks_call_end;

/* State that the caller and the thread share: a member of the argument. ranks_call_within()
 * initialises it. */
typedef struct ranks_timed_call {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*work)(void *argument), (*drop)(void *argument);
    void *argument;
    int done, abandoned;
} ranks_timed_call;

/* Runs work(argument) on a thread that blocks all signals, and waits at most timeout_ms for it. On
 * a time-out the thread calls drop(argument) once `work` returns; until then `work` may access only
 * the argument. */
ranks_call_end ranks_call_within(ranks_timed_call *call, int64_t timeout_ms,
                                 void (*work)(void *argument), void (*drop)(void *argument),
                                 void *argument);

#endif
