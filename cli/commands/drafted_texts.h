/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts written with drafts, as a command line asks for them.
 */
#ifndef GUMBEL_CLI_DRAFTED_TEXTS_H
#define GUMBEL_CLI_DRAFTED_TEXTS_H

#include "decoder/drafts/generate_drafted.h"
#include "text_writer.h"

/* The options --draft and its like. */
struct draft_choice {
    const char *from; /* a model folder, or "ngram"; NULL: no drafts */
    const char *rule; /* NULL: "coupled" */
    int32_t tokens, siblings;
    float temperature;
    bool check;
    int32_t threads; /* of the draft's model */
};

/* fail() where they cannot be, before anything is loaded. */
void check_draft_choice(const struct draft_choice *choice);

/* The model that drafts, which decoder_close() releases; NULL for n-grams and without drafts. */
decoder *open_draft_model(const struct draft_choice *choice);

/* Write the texts; fail()s where the decoder does.
 *  small    open_draft_model()'s
 *  device   of host memory
 *  verify   where the options have a draw; else NULL */
draft_stats write_drafted_texts(const struct draft_choice *choice, decoder *small, decoder *model,
                                gumbel_device *device, const generate_options *options,
                                text_verify verify, generate_times *times);

/* A check that passed, and the seconds of decoding both ways, prompts left out. */
struct drafts_check {
    int32_t texts;
    double with_drafts, without;
    int32_t steps; /* of decoding without drafts */
};

/* Write all texts once more without drafts; the command fails if a text differs from what was
 * written. Leaves `with_drafts` to the caller. */
struct drafts_check check_drafted_texts(decoder *model, gumbel_device *device,
                                        const generate_options *options,
                                        const struct writer *writer);

/* One line on stderr. */
void print_drafts_check(const struct drafts_check *check);

json_t *drafts_check_to_json(const struct drafts_check *check);

#endif
