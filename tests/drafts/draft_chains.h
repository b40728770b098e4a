/* SPDX-License-Identifier: Apache-2.0
 *
 * Many short texts, drafted by one Markov model and verified by another. The emitted tokens must
 * have exactly the target's distribution, which is known by enumeration. No test framework.
 */
#ifndef TESTS_DRAFT_CHAINS_H
#define TESTS_DRAFT_CHAINS_H

#include <gumbel/drafts.h>

enum { CHAIN_TOKENS = 4, CHAIN_LENGTH = 3, CHAIN_LAWS = 64, CHAIN_DRAFTS_MAX = 6 };

/* Logits of the token after each token, by both models. A text begins after token 0. */
typedef struct chain_models {
    float target[CHAIN_TOKENS][CHAIN_TOKENS], draft[CHAIN_TOKENS][CHAIN_TOKENS];
} chain_models;

/* The distribution of the token after a rejection: the correct residual, then wrong ones. */
typedef enum chain_residual {
    CHAIN_RESIDUAL_RIGHT,
    CHAIN_RESIDUAL_OTHERS,  /* p without the drafted token, as for a greedy draft */
    CHAIN_RESIDUAL_OF_NONE, /* max(p - q, 0) also where nothing was drafted */
} chain_residual;

/* How drafts are drawn; tests may set wrong values. */
typedef struct chain_plan {
    gumbel_rule rule;
    int drafts;          /* tokens of a draft */
    uint32_t domain;     /* seed of the drafts */
    int by_step;         /* domain | step << 8, as in GUMBEL_DRAFT_DOMAIN */
    float drawn_at;      /* temperature of the drafts' draws */
    float supplied_at;   /* temperature passed to the call */
    int missing;         /* every n-th draft is -1; 0: none */
    int32_t drawn_top_k; /* top-k of the draft, not passed to the call; 0: none */
    chain_residual residual;
    uint64_t seed;
} chain_plan;

/* The results. */
typedef struct chain_counts {
    int64_t laws[CHAIN_LAWS];               /* texts with each sequence of three tokens */
    int64_t accepted[CHAIN_DRAFTS_MAX + 1]; /* first cycles with each count of accepted drafts */
} chain_counts;

/* Generates `texts` texts of CHAIN_LENGTH tokens. */
void chains_write(gumbel_device *device, const chain_models *models, const chain_plan *plan,
                  int64_t texts, chain_counts *counts);

/* exp(logits), normalised. */
void chain_law(const float *logits, double *p);

/* The probability of each of the CHAIN_LAWS texts. */
void chain_laws(const chain_models *models, double *p);

#endif
