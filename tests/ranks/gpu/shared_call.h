/* SPDX-License-Identifier: Apache-2.0
 *
 * A call that ranks on one GPU make together: threads of one process, each with a stream, that
 * exchange through peer memory or through all-gathers queued on the streams.
 */
#ifndef TESTS_SHARED_CALL_H
#define TESTS_SHARED_CALL_H

#include "gpu_shards.h"
#include "queued_ranks.h"
#include "thread_ranks.h"

#include <pthread.h>

enum { RANKS_MAX = 4, TIMEOUT_MS = 100000 };

/* Step of a rank's thread; a failure prints the steps of all ranks. */
typedef enum rank_step {
    STEP_OPEN_GROUP,
    STEP_WAIT_FOR_RANKS,
    STEP_QUEUE_DRAW,
    STEP_WAIT_FOR_GPU,
    STEP_DRAWN
} rank_step;

/* One call that all ranks make, from their own threads. */
typedef struct shared_call {
    thread_ranks *peer_ranks;  /* if ranks exchange through peer memory, else NULL */
    queued_ranks *queue_ranks; /* if ranks exchange through queued all-gathers, else NULL */
    pthread_barrier_t barrier;
    const gpu_request *req;
    const outcome *expected;
    const shard_split *split;
    int fused;          /* from hidden states, not from logits */
    int tokens_only;    /* requests only tokens, scores and statuses */
    int one_rank_fails; /* the last rank makes no second call, or its collectives fail */
    int64_t timeout_ms;
    _Atomic int wrong, supported;
    _Atomic int unsupported;            /* ranks whose group does not support the request */
    _Atomic int turns[RANKS_MAX];       /* the current draw of each rank */
    _Atomic rank_step steps[RANKS_MAX]; /* the current step of that draw */
} shared_call;

/* Options of the calls that follow: queued all-gathers; bfloat16 heads; tokens and scores only. */
extern int use_queue, use_bfloat16, tokens_only;

extern int collectives; /* host collectives so far */

/* Sets up the exchange of a call's ranks: by queued all-gathers if use_queue is set, otherwise by
 * peer memory. */
void shared_call_open(shared_call *c, int32_t ranks);
void shared_call_close(shared_call *c);

/* Opens the group of one rank. An error ends the program. */
gumbel_group *shared_call_open_group(shared_call *c, int32_t rank);

/* Draws a request by `ranks` ranks, and compares with one GPU that has the whole vocabulary. With
 * `one_rank_fails`, each rank draws once more, and must return an error. Returns 0 if the group
 * does not support the request. */
int draw_shared_request(const request_plan *plan, int32_t ranks, int fused, int one_rank_fails,
                        uint64_t *random);

/* cuda_ranks_drafts.c: verified drafts. */
void ranks_drafts(void);

#endif
