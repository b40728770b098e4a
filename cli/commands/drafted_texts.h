/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts written with drafts, by the options of a command line.
 */
#ifndef GUMBEL_CLI_DRAFTED_TEXTS_H
#define GUMBEL_CLI_DRAFTED_TEXTS_H

#include "decoder/drafts/generate_drafted.h"
#include "text_writer.h"

/* The values of --draft, --draft-tokens and related options. */
struct draft_choice {
    const char *from; /* a model folder, or "ngram"; NULL: no drafts */
    const char *rule; /* NULL: "coupled" */
    int32_t tokens, siblings;
    float temperature;
    bool check;
    int32_t threads; /* of the draft model */
};

/* fail() for contradictory options, before anything is loaded. */
void check_draft_choice(const struct draft_choice *choice);

/* Opens the draft model; release it with decoder_close(). NULL for n-grams and without drafts. */
decoder *open_draft_model(const struct draft_choice *choice);

/* Writes the texts; fail() on an error of the decoder.
 *  small    of open_draft_model()
 *  device   of host memory
 *  verify   set if the options have a draw; else NULL */
draft_stats write_drafted_texts(const struct draft_choice *choice, decoder *small, decoder *model,
                                gumbel_device *device, const generate_options *options,
                                text_verify verify, generate_times *times);

/* A check that passed, and the seconds of decoding with and without drafts, without prompts. */
struct drafts_check {
    int32_t texts;
    double with_drafts, without;
    int32_t steps; /* of decoding without drafts */
};

/* Writes all texts again without drafts; fail() if a text differs. The caller sets
 * `with_drafts`. */
struct drafts_check check_drafted_texts(decoder *model, gumbel_device *device,
                                        const generate_options *options,
                                        const struct writer *writer);

/* Prints one line on stderr. */
void print_drafts_check(const struct drafts_check *check);

json_t *drafts_check_to_json(const struct drafts_check *check);

#endif
