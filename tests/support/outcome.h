/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices, and the outcomes (all outputs) of draws on them. Outputs are filled with a poison
 * pattern before each call, and compared bit by bit after it.
 */
#ifndef TESTS_OUTCOME_H
#define TESTS_OUTCOME_H

#include "inputs.h"

/* Lists the ISAs of this machine, the reference first; returns their number. */
int list_isas(gumbel_isa isas[4]);

/* Opens a CPU device; an argument of 0 is the default. Ends the program with the library's message
 * if that fails. */
gumbel_device *open_device(gumbel_isa isa, int32_t threads, int32_t tile);

/* Results of B rows with S samples; the arrays are owned by the outcome. */
typedef struct outcome {
    int64_t batch;
    int32_t samples;
    int32_t *tokens;
    float *logprobs, *scores, *lse;
    int32_t *status;
    int32_t *ranks, *kept, *top_ids; /* these four: NULL until outcome_widen() */
    float *top_logprobs;
    int32_t *kept_ids; /* these two: NULL until outcome_list_kept() */
    float *kept_logprobs;
    float *entropy;       /* NULL until outcome_add_entropy() */
    gumbel_output output; /* points at all of them */
    gumbel_error error;   /* of the last call that failed */
} outcome;

outcome *outcome_make(int64_t batch, int32_t samples);

/* Add ranks, kept counts and the num_top most likely tokens to the outputs, and set the
 * distribution of log-probabilities. */
void outcome_widen(outcome *generated, int32_t num_top, gumbel_distribution logprobs_of);

/* Add the tokens that truncation keeps, up to `capacity` a row; after outcome_widen(). */
void outcome_list_kept(outcome *generated, int32_t capacity);

/* Add the entropy of each row; after outcome_widen(). */
void outcome_add_entropy(outcome *generated);

void outcome_free(outcome *generated);

/* Fills every array with a pattern that no call writes. */
void outcome_poison(outcome *generated);

/* Returns 1 if every byte still has the pattern. */
int outcome_untouched(const outcome *generated);

/* Outputs that outcome_same() compares. */
typedef enum outcome_parts {
    OUTCOME_TOKENS = 1,
    OUTCOME_SCORES = 2,
    OUTCOME_MASS = 4,    /* lse and logprobs */
    OUTCOME_FURTHER = 8, /* the outputs that outcome_widen() and the functions after it add */
    OUTCOME_ALL = 15,
} outcome_parts;

/* Returns 1 if rows [first, first + other->batch) of `whole` have the bits of `other`; all NaNs are
 * equal. Otherwise prints the first difference after `what`, a line about the problem, and returns
 * 0. */
int outcome_same(const outcome *whole, int64_t first, const outcome *other, outcome_parts parts,
                 const char *what);

/* Poison the outputs, allocate a workspace of exactly the required size, and draw. Return the
 * call's status, and print a message unless it is GUMBEL_OK. */
gumbel_status draw(gumbel_device *device, const gumbel_head *head, const gumbel_sampling *sampling,
                   outcome *into);
gumbel_status draw_logits(gumbel_device *device, const gumbel_logits *logits,
                          const gumbel_sampling *sampling, outcome *into);

/* Allocates summaries [B, S] of a head or of logits; the other is NULL. Ends the program on an
 * error. */
gumbel_summary *summarise(gumbel_device *device, const gumbel_head *head,
                          const gumbel_logits *logits, const gumbel_sampling *sampling);

/* Prints a call's error unless its status is GUMBEL_OK; returns the status. */
gumbel_status report_call(const char *call, gumbel_status status, const gumbel_error *error);

/* A 64-byte aligned workspace of `bytes`, filled by hostile_fill(). The caller frees it. */
void *poisoned_workspace(size_t bytes);

/* A poisoned workspace of gumbel_workspace_size() bytes, or some KiB if that returns an error. Ends
 * the program if gumbel_workspace_most() is less. */
void *call_workspace(const gumbel_device *device, const gumbel_head *head,
                     const gumbel_logits *logits, const gumbel_sampling *sampling,
                     const gumbel_output *output, size_t *bytes);

/* A poisoned workspace of gumbel_workspace_most() bytes for plain calls of these sizes. */
void *make_workspace(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                     int32_t samples, size_t *bytes);

#endif
