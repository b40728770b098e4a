/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of three ranks of one group, which are threads, and their results. One rank may
 * deviate: it passes other parameters, or makes no call.
 */
#ifndef TESTS_RANK_CALLS_H
#define TESTS_RANK_CALLS_H

#include "shards.h"
#include "thread_ranks.h"

enum { CALLS_RANKS = 3, CALLS_DEVIATING = 1, CALLS_VOCAB = 300, CALLS_BATCH = 4 };

/* How the deviating rank's call differs from the others'. */
typedef struct rank_fault {
    const char *field; /* named by the error of every rank */
    void (*apply)(gumbel_logits *logits, gumbel_sampling *sampling, gumbel_output *output);
} rank_fault;

typedef struct rank_calls {
    thread_ranks *place;
    gumbel_device *device[CALLS_RANKS];
    gumbel_group *group[CALLS_RANKS];
    const float *logits;         /* [CALLS_BATCH, CALLS_VOCAB] */
    unsigned char *workspaces;   /* one for each rank */
    const rank_fault *deviation; /* NULL: all ranks pass equal parameters */
    int absent;                  /* the deviating rank makes no call */
    int64_t timeout_ms;
    int32_t tokens[CALLS_RANKS][2 * CALLS_BATCH]; /* the deviating rank may request two samples */
    gumbel_status status[CALLS_RANKS];
    gumbel_error error[CALLS_RANKS];
} rank_calls;

/* Opens devices and the group with this time-out; the test fails if a rank cannot open it. Close it
 * after all threads have ended. */
void rank_calls_open(rank_calls *s, int64_t timeout_ms);
void rank_calls_close(rank_calls *s);

/* Makes the call of one rank, for thread_ranks_run(); the argument is a rank_calls. */
void rank_calls_draw(void *argument, int32_t r);

/* Draws without a deviation. The test fails unless all ranks succeed with equal tokens. */
void rank_calls_assert_equal(rank_calls *s);

#endif
