/* SPDX-License-Identifier: Apache-2.0
 *
 * The draws of one text: what its options ask of the library, for any number of rows at once.
 */
#ifndef DECODER_TEXT_DRAWS_H
#define DECODER_TEXT_DRAWS_H

#include "decoder/generate.h"
#include "decoder/group_request.h"
#include "gumbel/drafts.h"

/* Verifies in place of gumbel_verify(), or by the rule BLOCK of gumbel_verify_logits(), for an
 * engine that keeps the head elsewhere: one of `head` and `logits` is NULL. All pointers are to
 * host memory; there is one request, whose row parameters are those of a generate_draw. The draft
 * has what drew it, and `lse` and `logprobs` beside that; its weights stay where they are, and the
 * same, for all calls of a text. `context` is that of the options' draw. Returns what the library's
 * call would. */
typedef gumbel_status (*text_verify)(void *context, const gumbel_head *head,
                                     const gumbel_logits *logits, const gumbel_sampling *sampling,
                                     const gumbel_draft *draft, const gumbel_verified *verified,
                                     gumbel_error *error);

/* Start from {0}; text_draws_free() releases what is in it, after a failure too. */
typedef struct text_draws {
    gumbel_device *device;
    const generate_options *options;
    float temperature;  /* of the draws; the options' times a factor */
    uint32_t sample;    /* sample counter */
    uint32_t domain;    /* of their noise; 0: the text's own */
    text_verify verify; /* where the options' draw is, these two are made; NULL: by the device */
    bool tells;         /* a draw by the device leaves the two below */
    float lse, logprob; /* of the last draw */
    group_request request;
    gumbel_history history; /* request.history's row, or what was copied over it */
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    void *workspace; /* 64-byte aligned; grows to the largest call */
    size_t workspace_bytes;
} text_draws;

/* text_draws_new(): the draws of text `sample` of the options, whose prompt is counted.
 *  device   of host memory
 *  vocab    tokens that penalties count
 *  factor   multiplies the options' temperature
 *  returns  0; -1 with `error` filled. */
int text_draws_new(text_draws *draws, gumbel_device *device, const generate_options *options,
                   int32_t sample, int64_t vocab, float factor, decoder_error *error);
void text_draws_free(text_draws *draws);

/* Count what `from` has counted, of as many tokens, instead of its own. */
void text_draws_copy_history(text_draws *to, const text_draws *from);

/* The head of a decoder behind `rows` hidden states, and logits that decoder_logits() made; of the
 * tokens that its tokenizer has. */
gumbel_head text_draws_head(const decoder *d, const float *hidden, int32_t rows);

/* The same with a screen of the head, or without one if its data is NULL. */
gumbel_head text_draws_screened(const decoder *d, const float *hidden, int32_t rows,
                                gumbel_screen screen);
gumbel_logits text_draws_logits(const decoder *d, const float *logits, int32_t rows);

/* The sampling of gumbel_draft: what the draws `by` asked for when they drafted behind a text. */
gumbel_sampling text_draws_drafted(const text_draws *text, const text_draws *by);

/* text_draws_sample(): draw the token behind the one at `position` from its row, and count it.
 *  best     [num_best] tokens of the draw's best scores, as in gumbel_output
 *  returns  0; -1 with `error` filled, also where the row's logits are not finite. */
int text_draws_sample(text_draws *draws, const gumbel_head *head, uint64_t position, int32_t *token,
                      int32_t *best, int32_t num_best, decoder_error *error);

/* text_draws_verify(): verify a draft whose root is at `position`, and count what it emits.
 *  head, logits  one of the two, the other NULL
 *  returns       0; -1 with `error` filled, also where the root's logits are not finite. */
int text_draws_verify(text_draws *draws, const gumbel_head *head, const gumbel_logits *logits,
                      uint64_t position, const gumbel_draft *draft, const gumbel_verified *verified,
                      decoder_error *error);

#endif /* DECODER_TEXT_DRAWS_H */
