/* SPDX-License-Identifier: Apache-2.0 */
#include "text_writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "report.h"
#include "stop_text.h"

/* A single text is its own progress. */
static bool shows_progress(const struct writer *writer)
{
    return (writer->style.quiet || writer->samples > 1) && writer->shown < writer->samples;
}

struct writer writer_new(const decoder *model, const char *prompt, size_t prompt_size,
                         int32_t samples, struct writer_style style)
{
    struct writer writer = {
        .style = style,
        .model = model,
        .prompt = prompt,
        .prompt_size = prompt_size,
        .samples = samples,
        .writings = require_memory("samples", samples, sizeof *writer.writings),
    };

    for (int32_t j = 0; j < samples; j++) {
        writer.writings[j] = (struct writing){
            .ranks = style.ranks ? json_array() : NULL,
            .kept = style.kept ? json_array() : NULL,
            .kept_sets = style.kept_sets ? json_array() : NULL,
            .top = style.num_top ? json_array() : NULL,
        };
    }
    if (style.echo && !style.quiet && samples == 1) {
        fwrite(prompt, 1, prompt_size, stdout);
        fflush(stdout);
    }
    if (shows_progress(&writer)) {
        progress_start("writing");
    }
    return writer;
}

void writer_free(struct writer *writer)
{
    for (int32_t j = 0; j < writer->samples; j++) {
        token_list_free(&writer->writings[j].ids);
        free(writer->writings[j].logprobs);
        json_decref(writer->writings[j].ranks);
        json_decref(writer->writings[j].kept);
        json_decref(writer->writings[j].kept_sets);
        json_decref(writer->writings[j].top);
        free(writer->writings[j].text);
    }
    free(writer->writings);
}

static void append_text(struct writing *writing, const token_text *added)
{
    char *grown = realloc(writing->text, writing->size + added->size + 1);

    if (!grown) {
        fail("text", "not enough memory");
    }
    memcpy(grown + writing->size, added->bytes, added->size);
    writing->text = grown;
    writing->size += added->size;
    grown[writing->size] = '\0';
}

/* Appends `added` to a text, and ends the text before a stop string. */
static void add_text(const struct writer *writer, struct writing *writing, int status,
                     token_text *added)
{
    const size_t known = writing->size;
    size_t at = 0;

    if (status != 0) {
        fail("text", "not enough memory");
    }
    append_text(writing, added);
    free(added->bytes);
    writing->stop = find_stop_text(writer->style.stops, writing->text, writing->size, known, &at);
    if (writing->stop) {
        writing->size = at;
        writing->text[at] = '\0';
    }
}

/* Prints a single text except bytes that may begin a stop string. */
static void print_text(const struct writer *writer, struct writing *writing)
{
    const size_t held =
        writing->ended ? 0 : count_held_bytes(writer->style.stops, writing->text, writing->size);

    if (writer->style.quiet || writer->samples > 1) {
        return;
    }
    fwrite(writing->text + writing->printed, 1, writing->size - held - writing->printed, stdout);
    fflush(stdout);
    writing->printed = writing->size - held;
}

/* Prints complete texts in order, each under a line with its number. */
static void print_complete(struct writer *writer)
{
    if (writer->style.quiet || writer->samples == 1) {
        return;
    }
    while (writer->shown < writer->samples && writer->writings[writer->shown].ended) {
        const struct writing *writing = &writer->writings[writer->shown];

        progress_clear();
        /* Sample counters wrap at 2^32, as in draws. */
        printf("--- sample %" PRIu32 "\n", writer->style.first_sample + (uint32_t)writer->shown);
        if (writer->style.echo) {
            fwrite(writer->prompt, 1, writer->prompt_size, stdout);
        }
        fwrite(writing->text, 1, writing->size, stdout);
        putchar('\n');
        fflush(stdout);
        writer->shown++;
    }
}

/* {"ids", "logprobs"} of `count` tokens. */
static json_t *tokens_to_json(const int32_t *token_ids, const float *token_logprobs, int32_t count)
{
    json_t *ids = json_array();
    json_t *logprobs = json_array();
    json_t *tokens = json_object();

    for (int32_t i = 0; i < count; i++) {
        json_array_append_new(ids, json_integer(token_ids[i]));
        json_array_append_new(logprobs, json_number((double)token_logprobs[i]));
    }
    json_put(tokens, "ids", ids);
    json_put(tokens, "logprobs", logprobs);
    return tokens;
}

static json_t *kept_set_to_json(const generate_token *token)
{
    return token->kept_ids ? tokens_to_json(token->kept_ids, token->kept_logprobs, token->kept)
                           : json_null();
}

static void keep_token(struct writing *writing, const generate_token *token, int32_t num_top)
{
    const size_t before = writing->ids.capacity;

    if (token_list_append(&writing->ids, &token->id, 1) == 0 && writing->ids.capacity != before) {
        writing->logprobs =
            realloc(writing->logprobs, writing->ids.capacity * sizeof *writing->logprobs);
    }
    if (!writing->logprobs) {
        fail("text", "not enough memory");
    }
    writing->logprobs[writing->ids.count - 1] = token->logprob;
    /* Without an array, jansson frees the value. */
    json_array_append_new(writing->ranks, json_integer(token->rank));
    json_array_append_new(writing->kept, json_integer(token->kept));
    if (writing->kept_sets) {
        json_array_append_new(writing->kept_sets, kept_set_to_json(token));
    }
    if (writing->top) {
        json_array_append_new(writing->top,
                              tokens_to_json(token->top_ids, token->top_logprobs, num_top));
    }
}

static bool is_eos(const decoder_info *info, int32_t id)
{
    for (int32_t i = 0; i < info->eos_count; i++) {
        if (info->eos_ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* Ends a text after its last token. */
static void end_text(struct writer *writer, struct writing *writing, int32_t id)
{
    const bool by_eos = !writer->style.ignore_eos && is_eos(decoder_describe(writer->model), id);
    token_text added = {0};

    if (!writing->stop) {
        add_text(writer, writing, tokenizer_decode_end(&writing->stream, &added), &added);
    }
    writing->ended = true;
    writing->ended_by = writing->stop ? "stop" : by_eos ? "eos" : "max-tokens";
    writer->drawn += writer->style.max_tokens - (int64_t)writing->ids.count;
}

generate_next writer_add_token(void *context, const generate_token *token)
{
    struct writer *writer = context;
    struct writing *writing = &writer->writings[token->sample];
    token_text added = {0};

    keep_token(writing, token, writer->style.num_top);
    writer->drawn++;
    add_text(writer, writing,
             tokenizer_decode_next(decoder_tokenizer(writer->model), &writing->stream, token->id,
                                   true, &added),
             &added);
    if (token->last || writing->stop) {
        end_text(writer, writing, token->id);
    }
    print_text(writer, writing);
    print_complete(writer);
    if (shows_progress(writer)) {
        progress_update(writer->drawn, (int64_t)writer->samples * writer->style.max_tokens);
    }
    return ferror(stdout) ? GENERATE_STOP : writing->ended ? GENERATE_END_TEXT : GENERATE_CONTINUE;
}

static json_t *ids_to_json(const token_list *list)
{
    json_t *ids = json_array();

    for (size_t i = 0; i < list->count; i++) {
        json_array_append_new(ids, json_integer(list->ids[i]));
    }
    return ids;
}

json_t *writer_to_json(const struct writer *writer, const token_list *prompt)
{
    json_t *root = json_object();
    json_t *samples = json_array();

    for (int32_t j = 0; j < writer->samples; j++) {
        const struct writing *writing = &writer->writings[j];
        json_t *entry = json_object();
        json_t *logprobs = json_array();

        for (size_t i = 0; i < writing->ids.count; i++) {
            json_array_append_new(logprobs, json_number((double)writing->logprobs[i]));
        }
        json_put(entry, "ids", ids_to_json(&writing->ids));
        json_put(entry, "logprobs", logprobs);
        json_put(entry, "text", json_stringn(writing->text, writing->size));
        json_put(entry, "ended_by", json_string(writing->ended_by));
        if (writing->stop) {
            json_put(entry, "stop", json_string(writing->stop));
        }
        /* json_object_set() ignores NULL. */
        json_object_set(entry, "ranks", writing->ranks);
        json_object_set(entry, "kept", writing->kept);
        json_object_set(entry, "kept_sets", writing->kept_sets);
        json_object_set(entry, "top", writing->top);
        json_array_append_new(samples, entry);
    }
    json_put(root, "prompt", json_stringn(writer->prompt, writer->prompt_size));
    json_put(root, "prompt_ids", ids_to_json(prompt));
    json_put(root, "samples", samples);
    return root;
}
