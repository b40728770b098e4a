/* SPDX-License-Identifier: Apache-2.0
 *
 * Random plans of calls: every kind and shape, most often those whose CTAs wait for each other.
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
    SOAK_LOGITS = 32, /* of the most likely */
};

typedef struct soak_plan {
    request_plan req;            /* hidden_size 0: from logits, of its dtype */
    gumbel_dtype weight, hidden; /* where D > 0 */
    gumbel_dtype bias;           /* 0: none */
    int64_t gap, hidden_gap; /* stride of weights or logits, and of hidden states, less D or V */
    int exact;               /* products are, in any order of sums */
    int ragged;              /* data is aligned to elements alone */
    int spoilt;              /* some rows hold a NaN or +inf */
    int screened;            /* the head has a screen, by which most such calls are drawn */
    int outputs;             /* the bits above */
    int ahead;               /* every step's noise is made ahead of its draw */
    int advances;            /* positions move on after every step, tokens go to a ring */
    int counts;              /* the history counts each step's tokens */
    int in_graph;            /* a step is captured, and replayed */
    int nodes;               /* > 0: rows are draft nodes, `nodes` a request, to be verified */
    int trees;               /* these are trees */
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
