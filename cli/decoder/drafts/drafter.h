/* SPDX-License-Identifier: Apache-2.0
 *
 * What proposes the next tokens of a text: a smaller model, or what followed the text's last tokens
 * when they stood in it before.
 */
#ifndef DECODER_DRAFTER_H
#define DECODER_DRAFTER_H

#include "decoder/drafts/text_draws.h"

#define DRAFT_SIBLINGS_MOST (GUMBEL_BEST_MOST - 1)

typedef struct drafter drafter;

/* drafter_new_model(): a drafter that draws with the text's own noise, so that it proposes what the
 * target would draw as often as the two agree.
 *  model    stays the caller's, as do device and options; its tokens are those of the target
 *  vocab    tokens that the target's penalties count
 *  capacity tokens of the longest text
 *  factor   multiplies the temperature of its draws
 *  returns  0; -1 with `error` filled. */
int drafter_new_model(decoder *model, gumbel_device *device, const generate_options *options,
                      int32_t sample, int64_t vocab, int32_t capacity, float factor,
                      drafter **result, decoder_error *error);

/* drafter_new_ngram(): a drafter that looks for the longest of the last 4, 3 or 2 tokens earlier in
 * the text. Nothing found: no draft. */
int drafter_new_ngram(drafter **result, decoder_error *error);

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

#endif /* DECODER_DRAFTER_H */
