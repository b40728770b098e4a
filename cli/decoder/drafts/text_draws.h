/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws and verifies the tokens of one text: its row parameters, history and workspace.
 */
#ifndef DECODER_TEXT_DRAWS_H
#define DECODER_TEXT_DRAWS_H

#include "decoder/generate.h"
#include "decoder/group_request.h"
#include "gumbel/drafts.h"

/* Replaces gumbel_verify(), or gumbel_verify_logits() for the rule BLOCK, in an engine that keeps
 * the head in device memory; one of `head` and `logits` is NULL. All pointers are to host memory;
 * there is one request, with the row parameters of a generate_draw. The draft has its head or
 * logits, and `lse` and `logprobs`; its weights are the same in all calls of a text. `context` is
 * that of the options' draw. Returns the status of the library's call. */
typedef gumbel_status (*text_verify)(void *context, const gumbel_head *head,
                                     const gumbel_logits *logits, const gumbel_sampling *sampling,
                                     const gumbel_draft *draft, const gumbel_verified *verified,
                                     gumbel_error *error);

/* Start from {0}; release it with text_draws_free(), also after an error. */
typedef struct text_draws {
    gumbel_device *device;
    const generate_options *options;
    float temperature; /* options->temperature * factor */
    uint32_t sample;   /* sample counter */
    uint32_t domain;   /* of the noise; 0: the target's */
    text_verify
        verify; /* replaces verification, as the options' draw replaces draws; NULL: the device */
    bool keep_lse;      /* store lse and logprob at each draw by the device */
    float lse, logprob; /* of the last draw */
    group_request request;
    gumbel_history history; /* the row of request.history, or a copied history */
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    void *workspace; /* 64-byte aligned; grows to the largest call */
    size_t workspace_bytes;
} text_draws;

/* text_draws_new(): the draws of text `sample` of the options; counts the prompt.
 *  device   of host memory
 *  vocab    tokens that penalties count
 *  factor   multiplies the options' temperature
 *  returns  0; -1 with `error` filled. */
int text_draws_new(text_draws *draws, gumbel_device *device, const generate_options *options,
                   int32_t sample, int64_t vocab, float factor, decoder_error *error);
void text_draws_free(text_draws *draws);

/* Copies the token counts of `from`, which has the same vocabulary. */
void text_draws_copy_history(text_draws *to, const text_draws *from);

/* The head of a decoder with `rows` hidden states, and logits of decoder_compute_logits(); limited
 * to the tokens of its tokenizer. */
gumbel_head text_draws_head(const decoder *d, const float *hidden, int32_t rows);

/* text_draws_head() with a screen of the head, or without one if its data is NULL. */
gumbel_head text_draws_screened_head(const decoder *d, const float *hidden, int32_t rows,
                                     gumbel_screen screen);
gumbel_logits text_draws_logits(const decoder *d, const float *logits, int32_t rows);

/* gumbel_draft.sampling: the parameters with which `by` drew the drafts of `text`. */
gumbel_sampling text_draws_draft_sampling(const text_draws *text, const text_draws *by);

/* text_draws_sample(): draws the token that follows `position`, and counts it in the history.
 *  best     [num_best] tokens of the draw's best scores, as in gumbel_output
 *  returns  0; -1 with `error` filled, also if the row's logits are not finite. */
int text_draws_sample(text_draws *draws, const gumbel_head *head, uint64_t position, int32_t *token,
                      int32_t *best, int32_t num_best, decoder_error *error);

/* text_draws_verify(): verifies a draft whose root is at `position`, and counts the emitted tokens.
 *  head, logits  one of the two, the other NULL
 *  returns       0; -1 with `error` filled, also if the root's logits are not finite. */
int text_draws_verify(text_draws *draws, const gumbel_head *head, const gumbel_logits *logits,
                      uint64_t position, const gumbel_draft *draft, const gumbel_verified *verified,
                      decoder_error *error);

#endif /* DECODER_TEXT_DRAWS_H */
