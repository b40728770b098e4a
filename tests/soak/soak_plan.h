/* SPDX-License-Identifier: Apache-2.0
 *
 * Random plans of calls of every kind and shape; most often, calls whose CTAs wait for each other.
 */
#ifndef TESTS_SOAK_PLAN_H
#define TESTS_SOAK_PLAN_H

#include "requests.h"

/* Bits of `outputs`: outputs besides the tokens drawn and the num_top most likely ones. */
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
    int exact;               /* sums of products are exact in any order */
    int ragged;              /* data are aligned to the size of an element only */
    int faulty;              /* some rows hold a NaN or +inf */
    int screened;            /* the head has a screen, which most such calls use */
    int nibbles;             /* the screen is one of nibbles */
    int outputs;             /* SOAK_SCORES, ... */
    int few_allowed;         /* masks, if there are any, allow few tokens, of a known number */
    int has_table;           /* rows have ids of a larger vocabulary */
    int prepare_noise;       /* every step's noise is prepared before its draw */
    int advances;            /* positions advance after every step; tokens are written to a ring */
    int counts;              /* the history counts each step's tokens */
    int in_graph;            /* a step is captured and replayed */
    int nodes;               /* > 0: verifies drafts; `nodes` rows per request */
    int trees;               /* the drafts are trees */
    int rules;               /* lists are made before each step, and row parameters of programs
                              * are updated after it (step_rules.h) */
    int steps;
} soak_plan;

/* A random plan for a GPU with `multiprocessors`. In a third of the plans the product stores only
 * logits above a bound; one in ten has a screen; one in five has programs. */
void soak_plan_at_random(soak_plan *plan, int64_t multiprocessors, uint64_t *random);

/* Writes one line that describes the plan to `text`. */
void soak_plan_describe(const soak_plan *plan, char *text, size_t bytes);

/* Whether the CPU backend computes the same bits in acceptable time. */
int soak_plan_suits_cpu(const soak_plan *plan);

#endif
