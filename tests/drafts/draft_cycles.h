/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts of a synthetic target, decoded step by step, and cycles of drafts to verify against them:
 * correct, wrong and invalid drafts, in chains and trees. The expected result of each verification
 * is computed from the text alone. A row's input depends on its request, its index in the text and
 * its token, so that a wrong draft leads to other rows. No test framework.
 */
#ifndef TESTS_DRAFT_CYCLES_H
#define TESTS_DRAFT_CYCLES_H

#include "inputs.h"

#include <gumbel/drafts.h>

/* The shape and options of a target. */
typedef struct texts_plan {
    int32_t requests;    /* R */
    int64_t vocab;       /* V */
    int64_t hidden_size; /* D; 0: rows are logits */
    int32_t length;      /* tokens of a text */
    int transforms;      /* masks, lists and penalties */
    int history;         /* penalties count a gumbel_history, not lists */
    int truncation;
    int ends_early; /* some texts end early, at a row of NaN */
    uint64_t seed;
} texts_plan;

/* A plan for any index >= 0; the options are chosen at random from the index. */
texts_plan texts_plan_at_random(int index);

/* The target of a plan, and its texts. */
typedef struct texts {
    texts_plan plan;
    gumbel_head head;             /* without `hidden`; only if hidden_size > 0 */
    gumbel_logits logits;         /* without `logits`; only if hidden_size is 0 */
    gumbel_sampling sampling;     /* of requests; positions are those of the texts' first tokens */
    gumbel_transforms transforms; /* without the mask and the counted tokens */
    gumbel_truncation truncation;
    int32_t *prompts;         /* [R] the one token that each text follows */
    int32_t *tokens;          /* [R, length] */
    float *scores, *logprobs; /* [R, length] */
    int32_t *lengths;         /* [R] tokens of each text */
    int32_t *ends;            /* [R] status of the row after a text shorter than the plan's */
    void *owned[28];
    int owned_count;
} texts;

texts *texts_make(const texts_plan *plan, gumbel_device *device);
void texts_free(texts *generated);

/* The input (D or V floats), and the mask, of the row that draws the token at index `place` of text
 * r, if the token before it is `token`. */
void texts_row(const texts *of, int32_t r, int64_t place, int32_t token, float *row);
void texts_mask(const texts *of, int32_t r, int64_t place, int32_t token, int32_t *words);
int64_t texts_width(const texts *of);
int64_t texts_words(const texts *of);

/* The token before index `place` of text r. */
int32_t texts_token_before(const texts *of, int32_t r, int64_t place);

/* Drafts of one cycle, and the expected results. */
typedef struct cycle {
    const texts *of;
    int64_t rows;      /* n */
    int32_t max_nodes; /* M */
    void *input;       /* [n, D or V] float32 */
    int32_t *mask;     /* [n, words] or NULL */
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling; /* points to arrays of the cycle and of the texts */
    gumbel_transforms transforms;
    gumbel_history history;
    gumbel_draft draft;
    gumbel_head draft_head; /* the call that drew the drafts; unused if the rule is COUPLED */
    gumbel_logits draft_logits;
    gumbel_sampling drafted;
    int32_t live_rows;
    int32_t *tokens, *offsets, *nodes, *parents, *limit; /* of the draft */
    int64_t *stop_offsets;
    int32_t *stop_ids;
    int32_t *slots;
    /* Expected outputs, named as in gumbel_verified. */
    int32_t *emitted, *path, *finished, *status;
    void *owned[44];
    int owned_count;
} cycle;

/* Generates drafts that follow the first progress[r] tokens of each text r. */
cycle *cycle_make(const texts *of, const int32_t *progress, uint64_t *random);
void cycle_free(cycle *generated);

/* Sets another rule, with chains of drafts drawn by a model close to the target. Expected results
 * are not set. */
void cycle_set_rule(cycle *generated, gumbel_rule rule, uint64_t *random);

/* The outputs of a verification, [R, M] and [R], filled with poison at first. */
typedef struct verified_arrays {
    gumbel_verified to; /* points to the arrays below */
    int32_t *tokens, *emitted, *accepted, *path, *last_row, *finished, *status;
    uint64_t *position, *histogram;
    float *logprobs, *scores;
    int64_t requests, nodes, all, places; /* R, M, R * M, and the number of positions */
    void *owned[12];                      /* the arrays, in the order of draft_results.c */
    int owned_count;
} verified_arrays;

verified_arrays *verified_make(int64_t requests, int32_t max_nodes, int64_t places);
void verified_free(verified_arrays *generated);

/* Sets the pointers of `to` to the arrays. */
void verified_point(verified_arrays *generated);

/* Returns 1 if the arrays hold the expected results, log-probabilities within `tolerance`; else
 * prints the first difference and returns 0. */
int cycle_agrees(const cycle *req, const int32_t *progress, const verified_arrays *found,
                 float tolerance);

/* Returns 1 if both are equal, log-probabilities and scores within `tolerance`. */
int verified_same(const verified_arrays *wanted, const verified_arrays *found, float tolerance);

/* Verifies on a CPU, in a workspace of exactly the reported size. Returns the call's status, and
 * prints a message unless it is GUMBEL_OK. */
gumbel_status cycle_verify(gumbel_device *device, const cycle *req, verified_arrays *into);

/* Whether a verification by GUMBEL_RULE_COUPLED takes at most gumbel_workspace_most() bytes for its
 * limits; prints both sizes otherwise. */
int cycle_is_within_limits(const gumbel_device *device, const cycle *c,
                           const verified_arrays *into);

#endif
