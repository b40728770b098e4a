/* SPDX-License-Identifier: Apache-2.0
 *
 * Random plans of calls: every kind and shape, most often calls whose CTAs wait for each other.
 */
#ifndef TESTS_SOAK_PLAN_H
#define TESTS_SOAK_PLAN_H

#include "requests.h"

/* Outputs beside tokens and the most likely ones. */
enum {
    SOAK_SCORES = 1,
    SOAK_STATUS = 2,
    SOAK_MASS = 4, /* lse and logprobs */
    SOAK_RANKS = 8,
    SOAK_KEPT = 16,
    SOAK_LOGITS = 32, /* logits of the most likely tokens */
};

typedef struct soak_plan {
    request_plan req;            /* hidden_size 0: from logits of req.dtype */
    gumbel_dtype weight, hidden; /* if D > 0 */
    gumbel_dtype bias;           /* 0: none */
    int64_t gap, hidden_gap; /* stride minus columns, of weights or logits and of hidden states */
    int exact;               /* products are exact in any order of summation */
    int ragged;              /* data are aligned to elements only */
    int faulty;              /* some rows hold a NaN or +inf */
    int screened;            /* the head has a screen, which most such calls use */
    int outputs;             /* the bits above */
    int prepare_noise;       /* every step's noise is prepared before its draw */
    int advances;            /* positions advance after every step; tokens are written to a ring */
    int counts;              /* the history counts each step's tokens */
    int in_graph;            /* a step is captured, and replayed */
    int nodes;               /* > 0: rows are draft nodes, `nodes` a request, to be verified */
    int trees;               /* the drafts are trees */
    int steps;
} soak_plan;

/* A random plan for a GPU with `multiprocessors`. Two in five are products that store by bounds,
 * and one in ten has a screen. */
void soak_plan_at_random(soak_plan *plan, int64_t multiprocessors, uint64_t *random);

/* Writes one line that describes the plan to `text`. */
void soak_plan_describe(const soak_plan *plan, char *text, size_t bytes);

/* Whether the CPU computes the same bits, in an acceptable time. */
int soak_plan_suits_cpu(const soak_plan *plan);

#endif
