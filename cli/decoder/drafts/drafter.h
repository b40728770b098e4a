/* SPDX-License-Identifier: Apache-2.0
 *
 * What proposes the next tokens of a text: a smaller model, or what followed the text's last tokens
 * when they stood in it before.
 */
#ifndef DECODER_DRAFTER_H
#define DECODER_DRAFTER_H

#include "decoder/drafts/text_draws.h"

#define DRAFT_TOKENS_MOST   63
#define DRAFT_SIBLINGS_MOST (GUMBEL_BEST_MOST - 1)

typedef struct drafter drafter;

/* Zero in any field but `tokens` is its default. */
typedef struct draft_options {
    decoder *model;   /* that proposes, with the target's tokenizer; NULL: n-grams of the text */
    int32_t tokens;   /* of a draft at most, 1..DRAFT_TOKENS_MOST */
    int32_t siblings; /* of each of them at most, 0..DRAFT_SIBLINGS_MOST: the next best of its draw,
                        * as leaves of a tree; not of n-grams, and by the coupled rule alone */
    float temperature;  /* a factor on the temperature of the draft's draws, > 0; 0: 1 */
    gumbel_rule rule;   /* how drafts are accepted */
    text_verify verify; /* where the options have a draw of the engine's */
} draft_options;

/* drafter_new(): a drafter. By the coupled rule a model draws with the text's own noise, so that it
 * proposes what the target would draw as often as the two agree; by the others, with noise of
 * drafts. Without a model it looks for the longest of the last 4, 3 or 2 tokens earlier in the
 * text; nothing found: no draft.
 *  draft    its model stays the caller's, as do device and options; its tokens are the target's
 *  vocab    tokens that the target's penalties count
 *  capacity tokens of the longest text
 *  returns  0; -1 with `error` filled. */
int drafter_new(const draft_options *draft, gumbel_device *device, const generate_options *options,
                int32_t sample, int64_t vocab, int32_t capacity, drafter **result,
                decoder_error *error);

/* NULL is allowed. */
void drafter_free(drafter *d);

/* drafter_propose(): the tokens that may follow text[count - 1], a chain, and beside each of them
 * siblings: the next best scores of its draw.
 *  text      [count]; texts of one drafter grow from call to call
 *  draws     the target's, whose history the drafter starts from
 *  drafts    [most] the chain
 *  siblings  [most, width] those of each token of the chain; -1: none. Not of n-grams
 *  width     0..DRAFT_SIBLINGS_MOST
 *  returns   how many tokens the chain has, 0..most; -1 with `error` filled. */
int32_t drafter_propose(drafter *d, const int32_t *text, int32_t count, const text_draws *draws,
                        int32_t most, int32_t *drafts, int32_t *siblings, int32_t width,
                        decoder_error *error);

/* What the last proposal of a model was drawn from: hidden states [tokens + 1, D], one for each
 * token of the chain and one behind them that says nothing; and the draws. */
const float *drafter_hidden(const drafter *d);
const text_draws *drafter_draws(const drafter *d);

/* `lse` and `logprobs` of these draws, [tokens + 1] likewise, for a rule of probabilities that is
 * served elsewhere; else NULL. */
const float *drafter_lse(const drafter *d);
const float *drafter_logprobs(const drafter *d);

#endif /* DECODER_DRAFTER_H */
