/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts of two Markov models, drafted by one and verified by the other, many at once: what a rule
 * emits has the target's law exactly, which can be added up. No test framework.
 */
#ifndef TESTS_DRAFT_CHAINS_H
#define TESTS_DRAFT_CHAINS_H

#include <gumbel/drafts.h>

enum { CHAIN_TOKENS = 4, CHAIN_LENGTH = 3, CHAIN_LAWS = 64, CHAIN_DRAFTS_MOST = 6 };

/* Logits of the token behind each token, by both models. A text begins behind token 0. */
typedef struct chain_models {
    float target[CHAIN_TOKENS][CHAIN_TOKENS], draft[CHAIN_TOKENS][CHAIN_TOKENS];
} chain_models;

/* What replaces a draft that was not accepted; but for the first, a wrong residual. */
typedef enum chain_residual {
    CHAIN_RESIDUAL_RIGHT,
    CHAIN_RESIDUAL_OTHERS,  /* p without the drafted token, as if q were that token alone */
    CHAIN_RESIDUAL_OF_NONE, /* max(p - q, 0) where there was no draft, too */
} chain_residual;

/* How drafts are made, which a test may do wrong. */
typedef struct chain_plan {
    gumbel_rule rule;
    int drafts;                  /* tokens of a draft */
    uint32_t domain;             /* by which they are drawn */
    int by_step;                 /* domain | step << 8, as GUMBEL_DRAFT_DOMAIN has it */
    float drawn_at, supplied_at; /* temperature at which they are drawn, and which is told */
    int missing;                 /* every so many-th draft is -1; 0: none */
    int32_t drawn_top_k;         /* top-k by which they are drawn, and which is not told; 0: none */
    chain_residual residual;
    uint64_t seed;
} chain_plan;

/* What came of it. */
typedef struct chain_counts {
    int64_t laws[CHAIN_LAWS];                /* texts by their first three tokens */
    int64_t accepted[CHAIN_DRAFTS_MOST + 1]; /* first cycles by what they accepted */
} chain_counts;

/* Write `texts` texts of CHAIN_LENGTH tokens. */
void chains_write(gumbel_device *device, const chain_models *models, const chain_plan *plan,
                  int64_t texts, chain_counts *counts);

/* exp(logits), normalised. */
void chain_law(const float *logits, double *p);

/* The chance of each of the CHAIN_LAWS texts. */
void chain_laws(const chain_models *models, double *p);

#endif
