/* SPDX-License-Identifier: Apache-2.0
 *
 * A drafter proposes the next tokens of a text: by a smaller model, or by n-grams, the tokens that
 * followed an earlier occurrence of the text's last tokens.
 */
#ifndef DECODER_DRAFTER_H
#define DECODER_DRAFTER_H

#include "decoder/drafts/text_draws.h"

#define DRAFT_TOKENS_MAX   63
#define DRAFT_SIBLINGS_MAX (GUMBEL_BEST_MAX - 1)

typedef struct drafter drafter;

/* Zero is the default of every field except `tokens`. */
typedef struct draft_options {
    decoder *model;    /* the draft model, with the target's tokenizer; NULL: n-grams of the text */
    int32_t tokens;    /* largest length of a draft, 1..DRAFT_TOKENS_MAX */
    int32_t siblings;  /* largest number of alternatives to each token, 0..DRAFT_SIBLINGS_MAX: the
                        * tokens of its draw's next best scores, as leaves of the tree; only for
                        * a model with the coupled rule */
    float temperature; /* factor of the temperature of the draft's draws, > 0; 0: 1 */
    gumbel_rule rule;  /* how drafts are accepted */
    text_verify verify; /* set if the options have a `draw` */
} draft_options;

/* drafter_new(): a drafter. For the coupled rule a model draws with the text's noise, so that it
 * often proposes the token that the target draws; for other rules, with the noise of the draft
 * domain. Without a model it finds the last 4, else 3, else 2 tokens earlier in the text; without a
 * match there is no draft.
 *  draft    its model has the target's tokenizer. The caller owns model, device and options
 *  vocab    tokens that the target's penalties count
 *  capacity tokens of the longest text
 *  returns  0; -1 with `error` filled. */
int drafter_new(const draft_options *draft, gumbel_device *device, const generate_options *options,
                int32_t sample, int64_t vocab, int32_t capacity, drafter **result,
                decoder_error *error);

/* NULL is allowed. */
void drafter_free(drafter *d);

/* drafter_propose(): proposes a chain of tokens behind text[count - 1], and siblings of each: the
 * next best scores of its draw.
 *  text      [count]; texts of one drafter grow from call to call
 *  draws     the target's, whose history the drafter starts from
 *  drafts    [most] the chain
 *  siblings  [most, width] of each token of the chain; -1: none. Not for n-grams
 *  width     0..DRAFT_SIBLINGS_MAX
 *  returns   the number of tokens of the chain, 0..most; -1 with `error` filled. */
int32_t drafter_propose(drafter *d, const int32_t *text, int32_t count, const text_draws *draws,
                        int32_t most, int32_t *drafts, int32_t *siblings, int32_t width,
                        decoder_error *error);

/* Hidden states [tokens + 1, D] from which the model drew its last proposal, one for each token of
 * the chain; the last row is unused. */
const float *drafter_hidden(const drafter *d);
const text_draws *drafter_draws(const drafter *d);

/* `lse` and `logprobs` [tokens + 1] of the last proposal's draws, if the rule uses probabilities
 * and draft_options.verify is set; else NULL. */
const float *drafter_lse(const drafter *d);
const float *drafter_logprobs(const drafter *d);

#endif /* DECODER_DRAFTER_H */
