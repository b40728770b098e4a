/* SPDX-License-Identifier: Apache-2.0 */
#include "drafted_texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"
#include "options.h"
#include "report.h"

/* Compares texts with those written before, token by token. */
struct comparison {
    const struct writer *writer;
    size_t *seen; /* [samples] tokens */
};

static generate_next compare_token(void *context, const generate_token *token)
{
    struct comparison *comparison = context;
    const struct writing *writing = &comparison->writer->writings[token->sample];
    const size_t place = comparison->seen[token->sample]++;

    if (place >= writing->ids.count || writing->ids.ids[place] != token->id) {
        fail_late("--check", "text %d differs from the one without drafts at token %zu",
                  (int)token->sample, place);
    }
    return writing->stop && place + 1 == writing->ids.count ? GENERATE_END_TEXT : GENERATE_CONTINUE;
}

struct drafts_check check_drafted_texts(decoder *model, gumbel_device *device,
                                        const generate_options *options,
                                        const struct writer *writer)
{
    struct comparison comparison = {
        .writer = writer,
        .seen = require_memory("samples", writer->samples, sizeof *comparison.seen),
    };
    generate_options again = *options;
    generate_times times;
    decoder_error error = {""};

    for (int32_t j = 0; j < writer->samples; j++) {
        comparison.seen[j] = 0;
    }
    again.on_token = compare_token;
    again.context = &comparison;
    if (generate(model, device, &again, &times, &error) != 0) {
        fail_message("--check", error.message);
    }
    for (int32_t j = 0; j < writer->samples; j++) {
        if (comparison.seen[j] != writer->writings[j].ids.count) {
            fail_late("--check", "text %d has %zu tokens, without drafts %zu", (int)j,
                      writer->writings[j].ids.count, comparison.seen[j]);
        }
    }
    free(comparison.seen);
    return (struct drafts_check){
        .texts = writer->samples, .without = times.trunk + times.head, .steps = times.steps};
}

void print_drafts_check(const struct drafts_check *check)
{
    fprintf(stderr,
            "check passed: the %s the same with and without drafts; decoding took %.3f s with "
            "them, %.3f s without\n",
            check->texts > 1 ? "texts are" : "text is", check->with_drafts, check->without);
}

json_t *drafts_check_to_json(const struct drafts_check *check)
{
    json_t *root = json_object();

    json_put(root, "same_text", json_true());
    json_put(root, "seconds_with_drafts", json_number(check->with_drafts));
    json_put(root, "seconds_without", json_number(check->without));
    return root;
}

/* The rule named by --draft-rule. */
static gumbel_rule find_rule(const struct draft_choice *choice)
{
    static const char *const names[] = {
        [GUMBEL_RULE_COUPLED] = "coupled",
        [GUMBEL_RULE_REJECTION] = "rejection",
        [GUMBEL_RULE_BLOCK] = "block",
    };

    for (size_t i = 0; choice->rule && i < sizeof names / sizeof *names; i++) {
        if (strcmp(choice->rule, names[i]) == 0) {
            return (gumbel_rule)i;
        }
    }
    if (choice->rule) {
        fail("--draft-rule", "'%s' is none of 'coupled', 'rejection' and 'block'", choice->rule);
    }
    return GUMBEL_RULE_COUPLED;
}

decoder *open_draft_model(const struct draft_choice *choice)
{
    decoder *model = NULL;
    decoder_error error = {""};

    if (choice->from && strcmp(choice->from, "ngram") != 0 &&
        decoder_open(choice->from, choice->threads, &model, &error) != 0) {
        fail("--draft", "%s", error.message);
    }
    return model;
}

draft_stats write_drafted_texts(const struct draft_choice *choice, decoder *small, decoder *model,
                                gumbel_device *device, const generate_options *options,
                                text_verify verify, generate_times *times)
{
    draft_options draft = {.model = small,
                           .tokens = choice->tokens,
                           .siblings = choice->siblings,
                           .temperature = choice->temperature,
                           .rule = find_rule(choice),
                           .verify = verify};
    draft_stats stats;
    decoder_error error = {""};

    if (generate_drafted(model, device, options, &draft, &stats, times, &error) != 0) {
        fail_message("--draft", error.message);
    }
    return stats;
}

void check_draft_choice(const struct draft_choice *choice)
{
    if (!choice->from && choice->check) {
        fail("--check", "requires --draft");
    }
    if (choice->from && strcmp(choice->from, "ngram") == 0 && choice->siblings) {
        fail("--draft-siblings", "requires a draft model; n-grams have no siblings");
    }
    if (find_rule(choice) != GUMBEL_RULE_COUPLED && choice->siblings) {
        fail("--draft-siblings", "the rule '%s' supports chains only", choice->rule);
    }
    if (find_rule(choice) != GUMBEL_RULE_COUPLED && choice->check) {
        fail("--check",
             "requires the rule 'coupled': with '%s' the text differs from the one without drafts",
             choice->rule);
    }
}
