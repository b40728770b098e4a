/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/drafts/drafter.h"

#include <stdlib.h>
#include <string.h>

#define LONGEST_SUFFIX  4
#define SHORTEST_SUFFIX 2

struct drafter {
    decoder *model; /* NULL: n-grams */
    gumbel_rule rule;
    decoder_sequence *sequence;
    int32_t *fed;  /* [capacity] tokens fed to the sequence */
    float *hidden; /* [tokens + 1, D] */
    int32_t hidden_size;
    float *lse, *logprobs; /* [tokens + 1] of the draws; NULL: not stored */
    text_draws draws;
};

/* Allocates lse and logprobs of the draws, for a rule that another device verifies. */
static int keep_draws(drafter *d, const draft_options *draft, decoder_error *error)
{
    size_t places = (size_t)draft->tokens + 1;
    if (!draft->verify || draft->rule == GUMBEL_RULE_COUPLED) {
        return 0;
    }
    d->lse = calloc(places, sizeof *d->lse);
    d->logprobs = calloc(places, sizeof *d->logprobs);
    d->draws.keep_lse = true;
    return d->lse && d->logprobs ? 0 : decoder_fail(error, NULL, "drafts", "out of memory");
}

int drafter_new(const draft_options *draft, gumbel_device *device, const generate_options *options,
                int32_t sample, int64_t vocab, int32_t capacity, drafter **result,
                decoder_error *error)
{
    drafter *d = *result = calloc(1, sizeof *d);
    float factor = draft->temperature > 0 ? draft->temperature : 1;
    if (!d) {
        return decoder_fail(error, NULL, "drafts", "out of memory");
    }
    if (!draft->model) {
        return 0;
    }
    d->model = draft->model;
    d->rule = draft->rule;
    d->hidden_size = decoder_describe(d->model)->hidden_size;
    d->fed = calloc((size_t)capacity, sizeof *d->fed);
    d->hidden = calloc((size_t)(draft->tokens + 1) * (size_t)d->hidden_size, sizeof *d->hidden);
    if (!d->fed || !d->hidden) {
        decoder_fail(error, NULL, "drafts", "out of memory");
    } else if (decoder_sequence_new(d->model, capacity, &d->sequence, error) == 0 &&
               text_draws_new(&d->draws, device, options, sample, vocab, factor, error) == 0 &&
               keep_draws(d, draft, error) == 0) {
        return 0;
    }
    drafter_free(d);
    *result = NULL;
    return -1;
}

void drafter_free(drafter *d)
{
    if (d) {
        text_draws_free(&d->draws);
        decoder_sequence_free(d->sequence);
        free(d->fed);
        free(d->hidden);
        free(d->lse);
        free(d->logprobs);
        free(d);
    }
}

/* ------------------------------------------------------------------------------ n-grams ---- */

/* The last earlier occurrence of the last `length` tokens of a text; -1: none. */
static int32_t find_suffix(const int32_t *text, int32_t count, int32_t length)
{
    const int32_t *suffix = text + count - length;
    for (int32_t at = count - length - 1; at >= 0; at--) {
        if (memcmp(text + at, suffix, (size_t)length * sizeof *text) == 0) {
            return at;
        }
    }
    return -1;
}

static int32_t propose_ngram(const int32_t *text, int32_t count, int32_t most, int32_t *drafts)
{
    for (int32_t length = LONGEST_SUFFIX; length >= SHORTEST_SUFFIX; length--) {
        int32_t at = count > length ? find_suffix(text, count, length) : -1;
        if (at >= 0) {
            int32_t first = at + length, found = count - first < most ? count - first : most;
            memcpy(drafts, text + first, (size_t)found * sizeof *drafts);
            return found;
        }
    }
    return 0;
}

/* -------------------------------------------------------------------------------- model ---- */

/* The hidden state of the draw of the i-th token of a draft. */
static float *find_hidden(const drafter *d, int32_t i) { return d->hidden + i * d->hidden_size; }

/* Feeds tokens; writes the hidden state of the last as that of draft i. */
static int feed_tokens(drafter *d, const int32_t *tokens, int32_t count, int32_t i,
                       decoder_error *error)
{
    int32_t length = decoder_sequence_length(d->sequence);
    memcpy(d->fed + length, tokens, (size_t)count * sizeof *tokens);
    return decoder_feed(d->model, d->sequence, tokens, count, count - 1, find_hidden(d, i), error);
}

/* Removes fed tokens that differ from the text, and feeds the missing ones. */
static int catch_up(drafter *d, const int32_t *text, int32_t count, decoder_error *error)
{
    int32_t length = decoder_sequence_length(d->sequence), same = 0;
    while (same < length && same < count - 1 && d->fed[same] == text[same]) {
        same++;
    }
    decoder_sequence_truncate(d->sequence, same);
    return feed_tokens(d, text + same, count - same, 0, error);
}

/* Draws the i-th token of a draft, behind the token at `position`, and its siblings; counts the
 * token. */
static int draw_token(drafter *d, int32_t i, uint64_t position, int32_t *token, int32_t *siblings,
                      int32_t width, decoder_error *error)
{
    gumbel_head head = text_draws_head(d->model, find_hidden(d, i), 1);
    int32_t best[GUMBEL_BEST_MAX];
    if (d->rule != GUMBEL_RULE_COUPLED) {
        d->draws.domain = GUMBEL_DRAFT_DOMAIN(d->rule == GUMBEL_RULE_BLOCK ? i : 0);
    }
    if (text_draws_sample(&d->draws, &head, position, token, best, width > 0 ? width + 1 : 0,
                          error) != 0) {
        return -1;
    }
    if (d->lse) {
        d->lse[i] = d->draws.lse;
        d->logprobs[i] = d->draws.logprob;
    }
    memcpy(siblings, best + 1, (size_t)width * sizeof *siblings);
    return 0;
}

static int32_t propose_by_model(drafter *d, const int32_t *text, int32_t count,
                                const text_draws *draws, int32_t most, int32_t *drafts,
                                int32_t *siblings, int32_t width, decoder_error *error)
{
    text_draws_copy_history(&d->draws, draws);
    if (catch_up(d, text, count, error) != 0) {
        return -1;
    }
    for (int32_t i = 0; i < most; i++) {
        if ((i > 0 && feed_tokens(d, drafts + i - 1, 1, i, error) != 0) ||
            draw_token(d, i, (uint64_t)(count - 1 + i), drafts + i, siblings + i * width, width,
                       error) != 0) {
            return -1;
        }
    }
    return most;
}

int32_t drafter_propose(drafter *d, const int32_t *text, int32_t count, const text_draws *draws,
                        int32_t most, int32_t *drafts, int32_t *siblings, int32_t width,
                        decoder_error *error)
{
    if (most <= 0) {
        return 0;
    }
    return d->model ? propose_by_model(d, text, count, draws, most, drafts, siblings, width, error)
                    : propose_ngram(text, count, most, drafts);
}

const float *drafter_hidden(const drafter *d) { return d->hidden; }

const text_draws *drafter_draws(const drafter *d) { return &d->draws; }

const float *drafter_lse(const drafter *d) { return d->lse; }

const float *drafter_logprobs(const drafter *d) { return d->logprobs; }
