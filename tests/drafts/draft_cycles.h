/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts that a made-up target writes, decoded step by step, and drafts of them to verify: right,
 * wrong and impossible ones, chains and trees, with what a verification must say of each, told from
 * the text alone. A row's input depends on its request, its place in the text and its token, so
 * that a wrong draft leads to other rows. No test framework.
 */
#ifndef TESTS_DRAFT_CYCLES_H
#define TESTS_DRAFT_CYCLES_H

#include "inputs.h"

#include <gumbel/drafts.h>

/* What to make. */
typedef struct texts_plan {
    int32_t requests;    /* R */
    int64_t vocab;       /* V */
    int64_t hidden_size; /* D; 0: rows are logits */
    int32_t length;      /* tokens of a text */
    int transforms;      /* masks, lists and penalties */
    int history;         /* what penalties count is a gumbel_history, not lists */
    int truncation;
    int spoiled; /* a row of NaN ends some texts early */
    uint64_t seed;
} texts_plan;

/* Any index >= 0: everything mixed. */
texts_plan texts_plan_at_random(int index);

/* A plan's target and the texts that it wrote. */
typedef struct texts {
    texts_plan plan;
    gumbel_head head;             /* but for `hidden`; or */
    gumbel_logits logits;         /* but for `logits` */
    gumbel_sampling sampling;     /* of requests, positions those of the texts' first tokens */
    gumbel_transforms transforms; /* but for the mask and what is counted */
    gumbel_truncation truncation;
    int32_t *prompts;         /* [R] the one token that each text follows */
    int32_t *tokens;          /* [R, length] */
    float *scores, *logprobs; /* [R, length] */
    int32_t *lengths;         /* [R] tokens of each text; where it is less than the plan's */
    int32_t *ends;            /* [R] the status of the row behind */
    void *owned[24];
    int owned_count;
} texts;

texts *texts_make(const texts_plan *plan, gumbel_device *device);
void texts_free(texts *generated);

/* The input of the row behind `token`, which stands before place `place` of text r: D or V floats;
 * and the tokens that its mask allows. */
void texts_row(const texts *of, int32_t r, int64_t place, int32_t token, float *row);
void texts_mask(const texts *of, int32_t r, int64_t place, int32_t token, int32_t *words);
int64_t texts_width(const texts *of);
int64_t texts_words(const texts *of);

/* The token before place `place` of text r. */
int32_t texts_token_before(const texts *of, int32_t r, int64_t place);

/* Drafts for one cycle, and what must come of them. */
typedef struct cycle {
    const texts *of;
    int64_t rows;      /* n */
    int32_t max_nodes; /* M */
    void *input;       /* [n, D or V] float32 */
    int32_t *mask;     /* [n, words] or NULL */
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling; /* these point at what the cycle owns, and at the texts' */
    gumbel_transforms transforms;
    gumbel_history history;
    gumbel_draft draft;
    gumbel_head draft_head; /* these three where the rule is not COUPLED: what drew the drafts */
    gumbel_logits draft_logits;
    gumbel_sampling drafted;
    int32_t live_rows;
    int32_t *tokens, *offsets, *nodes, *parents, *limit; /* of the draft */
    int64_t *stop_offsets;
    int32_t *stop_ids;
    int32_t *slots;
    /* Expected, as gumbel_verified names them. */
    int32_t *emitted, *path, *finished, *status;
    void *owned[40];
    int owned_count;
} cycle;

/* Drafts that go on behind `progress` [R] tokens of each text. */
cycle *cycle_make(const texts *of, const int32_t *progress, uint64_t *random);
void cycle_free(cycle *generated);

/* Have the cycle's rule be another, of drafts that a model drew which is not far from the target:
 * chains, of which nothing is expected. */
void cycle_weigh(cycle *generated, gumbel_rule rule, uint64_t *random);

/* What a verification wrote, [R, M] and [R]: poisoned when made. */
typedef struct verified_arrays {
    gumbel_verified to; /* points at all below */
    int32_t *tokens, *emitted, *accepted, *path, *last_row, *finished, *status;
    uint64_t *position, *histogram;
    float *logprobs, *scores;
    int64_t requests, nodes, all, places; /* R, M, R * M, and those of positions */
    void *owned[12];                      /* the arrays, in the order of draft_results.c */
    int owned_count;
} verified_arrays;

verified_arrays *verified_make(int64_t requests, int32_t max_nodes, int64_t places);
void verified_free(verified_arrays *generated);

/* Have `to` point at the arrays. */
void verified_point(verified_arrays *generated);

/* 1 where they hold what the cycle must come to, log-probabilities within `tolerance`; else 0, and
 * the first difference is printed. */
int cycle_agrees(const cycle *req, const int32_t *progress, const verified_arrays *found,
                 float tolerance);

/* 1 where both hold the same, log-probabilities and scores within `tolerance`. */
int verified_same(const verified_arrays *wanted, const verified_arrays *found, float tolerance);

/* Make a workspace of exactly the size asked for, and verify on a CPU. Returns the call's status; a
 * message is printed unless it is GUMBEL_OK. */
gumbel_status cycle_verify(gumbel_device *device, const cycle *req, verified_arrays *into);

#endif
