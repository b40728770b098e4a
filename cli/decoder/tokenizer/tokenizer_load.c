/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "decoder/files/json_file.h"
#include "decoder/files/mapping.h"
#include "decoder/tokenizer/tokenizer.h"
#include "decoder/tokenizer/tokenizer_load.h"
#include "decoder/tokenizer/tokenizer_parts.h"

/* Finds the object under `key` of `place`. */
static int enter_object(const json_place *place, const char *key, json_place *inner)
{
    *inner = (json_place){place->file, key, json_value(place, key), place->error};
    return json_is_object(inner->object) ? 0 : json_fail(place, key, "is not a JSON object");
}

/* Rejects a field that is not absent, null or false. */
static int reject_set_field(const json_place *place, const char *key)
{
    const json_t *value = json_value(place, key);
    return value && !json_is_false(value) ? json_fail(place, key, "is not supported") : 0;
}

/* Copies a token's content; in form C for a normalised token, as the text that it is matched
 * with. */
static char *copy_content(const char *content, bool form_c)
{
    return form_c ? (char *)utf8proc_NFC((const utf8proc_uint8_t *)content) : strdup(content);
}

static int read_added_token(tokenizer *t, const json_place *place)
{
    static const char *const unsupported[] = {"single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) {
        if (reject_set_field(place, unsupported[i]) != 0) {
            return -1;
        }
    }
    added_token *token = &t->added.tokens[t->added.count];
    *token = (added_token){0};
    const char *content = "";
    int64_t id = 0;
    if (json_text(place, "content", true, &content) != 0 ||
        json_integer_in(place, "id", true, 0, BPE_MAX_TOKENS - 1, &id) != 0 ||
        json_flag(place, "special", false, &token->special) != 0 ||
        json_flag(place, "normalized", false, &token->normalized) != 0) {
        return -1;
    }
    if (content[0] == '\0') {
        return json_fail(place, "content", "is empty");
    }
    token->content = copy_content(content, token->normalized && t->nfc);
    if (!token->content) {
        return json_fail(place, NULL, "out of memory");
    }
    token->size = strlen(token->content);
    token->id = (int32_t)id;
    t->added.count++;
    t->size = token->id >= t->size ? token->id + 1 : t->size;
    return 0;
}

static int read_added(tokenizer *t, const json_place *root)
{
    const json_t *list = json_value(root, "added_tokens");
    if (list && !json_is_array(list)) {
        return json_fail(root, "added_tokens", "is not an array");
    }
    t->added.tokens = calloc(json_array_size(list) + 1, sizeof *t->added.tokens);
    if (!t->added.tokens) {
        return json_fail(root, "added_tokens", "out of memory");
    }
    size_t index;
    const json_t *entry;
    json_array_foreach (list, index, entry) {
        char path[48];
        snprintf(path, sizeof path, "added_tokens[%zu]", index);
        json_place place = {root->file, path, entry, root->error};
        if (!json_is_object(entry)) {
            return json_fail(&place, NULL, "is not a JSON object");
        }
        if (read_added_token(t, &place) != 0) {
            return -1;
        }
    }
    return 0;
}

/* An added token that is also in the vocabulary must have the same id there, and no two added
 * tokens may share a content. */
static int check_added(const tokenizer *t, const json_place *root, const json_t *vocab)
{
    for (size_t i = 0; i < t->added.count; i++) {
        const added_token *token = &t->added.tokens[i];
        const json_t *known = json_object_get(vocab, token->content);
        if (known && json_integer_value(known) != token->id) {
            return json_fail(root, "added_tokens", "\"%.64s\" has another id in model.vocab",
                             token->content);
        }
        bool twice = i > 0 && token->size == token[-1].size &&
                     memcmp(token->content, token[-1].content, token->size) == 0;
        if (twice) {
            return json_fail(root, "added_tokens", "\"%.64s\" comes twice", token->content);
        }
    }
    return 0;
}

/* Reads NFC, alone or as the only step of a sequence. */
static int read_normalizer(tokenizer *t, const json_place *root)
{
    json_place place;
    const char *type = "";
    if (!json_value(root, "normalizer")) {
        return 0;
    }
    if (enter_object(root, "normalizer", &place) != 0) {
        return -1;
    }
    const json_t *steps = json_value(&place, "normalizers");
    if (json_is_array(steps) && json_array_size(steps) == 0) {
        return 0;
    }
    if (json_is_array(steps) && json_array_size(steps) == 1) {
        place.object = json_array_get(steps, 0);
    }
    if (json_text(&place, "type", true, &type) != 0) {
        return -1;
    }
    if (strcmp(type, "NFC") != 0) {
        return json_fail(&place, "type", "\"%.64s\" is not supported; NFC is", type);
    }
    t->nfc = true;
    return 0;
}

static int read_split(tokenizer *t, const json_place *place)
{
    const json_t *pattern = json_object_get(json_value(place, "pattern"), "Regex");
    const char *behavior = "";
    if (!json_is_string(pattern)) {
        return json_fail(place, "pattern", "has no Regex: other patterns are not supported");
    }
    if (json_text(place, "behavior", true, &behavior) != 0 ||
        reject_set_field(place, "invert") != 0) {
        return -1;
    }
    if (strcmp(behavior, "Isolated") != 0) {
        return json_fail(place, "behavior", "\"%.64s\" is not supported; Isolated is", behavior);
    }
    return pretokenizer_add(t->pretokenizer, json_string_value(pattern),
                            json_string_length(pattern), place->file, "pre_tokenizer.pattern",
                            place->error);
}

/* Reads one step: Split, or ByteLevel, which must be the last. */
static int read_pre_step(tokenizer *t, const json_place *place, bool last)
{
    const char *type = "";
    bool use_regex = true;
    if (json_text(place, "type", true, &type) != 0) {
        return -1;
    }
    if (strcmp(type, "Split") == 0 && !last) {
        return read_split(t, place);
    }
    if (strcmp(type, "ByteLevel") != 0 || !last) {
        return json_fail(place, "type", "\"%.64s\" is not supported%s", type,
                         last ? " as the last step; ByteLevel is" : " here; Split is");
    }
    if (reject_set_field(place, "add_prefix_space") != 0 ||
        json_flag(place, "use_regex", false, &use_regex) != 0) {
        return -1;
    }
    return use_regex
               ? pretokenizer_add(t->pretokenizer, PRETOKENIZER_GPT2, strlen(PRETOKENIZER_GPT2),
                                  place->file, "pre_tokenizer.use_regex", place->error)
               : 0;
}

static int read_pre_tokenizer(tokenizer *t, const json_place *root)
{
    json_place place;
    if (enter_object(root, "pre_tokenizer", &place) != 0) {
        return -1;
    }
    const json_t *steps = json_value(&place, "pretokenizers");
    if (!steps) {
        return read_pre_step(t, &place, true);
    }
    size_t count = json_array_size(steps);
    if (count == 0) {
        return json_fail(&place, "pretokenizers", "is not a list of steps");
    }
    for (size_t i = 0; i < count; i++) {
        place.object = json_array_get(steps, i);
        if (read_pre_step(t, &place, i + 1 == count) != 0) {
            return -1;
        }
    }
    return 0;
}

/* Appends the tokens of one special entry of a template. */
static int append_special(token_list *list, const json_place *place, const char *name)
{
    const json_t *known = json_object_get(json_value(place, "special_tokens"), name);
    const json_t *ids = json_object_get(known, "ids");
    size_t index;
    const json_t *id;
    if (json_array_size(ids) == 0) {
        return json_fail(place, "special_tokens", "\"%.64s\" has no ids", name);
    }
    json_array_foreach (ids, index, id) {
        int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value >= BPE_MAX_TOKENS) {
            return json_fail(place, "special_tokens", "\"%.64s\" has an id out of range", name);
        }
        int32_t number = (int32_t)value;
        if (token_list_append(list, &number, 1) != 0) {
            return json_fail(place, NULL, "out of memory");
        }
    }
    return 0;
}

/* Reads "single": special tokens around one sequence, "A". */
static int read_template(tokenizer *t, const json_place *place)
{
    size_t index, sequences = 0;
    const json_t *entry, *single = json_value(place, "single");
    if (t->before.count + t->after.count > 0) {
        return json_fail(place, "type", "a second TemplateProcessing is not supported");
    }
    json_array_foreach (single, index, entry) {
        const json_t *special = json_object_get(entry, "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));
        if (name) {
            token_list *list = sequences == 0 ? &t->before : &t->after;
            if (append_special(list, place, name) != 0) {
                return -1;
            }
        } else if (json_object_get(entry, "Sequence")) {
            sequences++;
        } else {
            return json_fail(place, "single", "entry %zu is of no known kind", index);
        }
    }
    return sequences == 1 ? 0 : json_fail(place, "single", "does not hold one Sequence");
}

static int read_post_step(tokenizer *t, const json_place *place)
{
    const char *type = "";
    if (json_text(place, "type", true, &type) != 0) {
        return -1;
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return read_template(t, place);
    }
    /* ByteLevel as a post-processor only changes offsets, which are not computed here. */
    return strcmp(type, "ByteLevel") == 0
               ? 0
               : json_fail(place, "type", "\"%.64s\" is not supported", type);
}

static int read_post_processor(tokenizer *t, const json_place *root)
{
    json_place place;
    if (!json_value(root, "post_processor")) {
        return 0;
    }
    if (enter_object(root, "post_processor", &place) != 0) {
        return -1;
    }
    const json_t *steps = json_value(&place, "processors");
    if (!steps) {
        return read_post_step(t, &place);
    }
    size_t index;
    const json_t *step;
    json_array_foreach (steps, index, step) {
        place.object = step;
        if (read_post_step(t, &place) != 0) {
            return -1;
        }
    }
    return 0;
}

static int read_decoder(const json_place *root)
{
    json_place place;
    const char *type = "";
    if (enter_object(root, "decoder", &place) != 0 || json_text(&place, "type", true, &type) != 0) {
        return -1;
    }
    return strcmp(type, "ByteLevel") == 0
               ? 0
               : json_fail(&place, "type", "\"%.64s\" is not supported; ByteLevel is", type);
}

static int read_document(tokenizer *t, const json_place *root)
{
    json_place model;
    /* The kind of model first: other kinds have other normalizers and decoders. */
    if (enter_object(root, "model", &model) != 0 || tokenizer_reject_variants(&model) != 0 ||
        reject_set_field(root, "truncation") != 0 || reject_set_field(root, "padding") != 0 ||
        read_normalizer(t, root) != 0 || read_added(t, root) != 0 ||
        read_pre_tokenizer(t, root) != 0 || read_post_processor(t, root) != 0 ||
        read_decoder(root) != 0 || tokenizer_load_model(t, &model) != 0) {
        return -1;
    }
    added_tokens_sort(&t->added);
    return check_added(t, root, json_value(&model, "vocab"));
}

int tokenizer_parse(const void *bytes, size_t size, const char *name, tokenizer **result,
                    decoder_error *error)
{
    *result = NULL;
    json_place root = {name, "", json_document(bytes, size, JSON_NUMBERS_EXACT, name, error),
                       error};
    if (!root.object) {
        return -1;
    }
    tokenizer *t = calloc(1, sizeof *t);
    int status = -1;
    if (t && (t->path = strdup(name)) && (t->pretokenizer = pretokenizer_new())) {
        status = read_document(t, &root);
    } else {
        decoder_fail(error, name, NULL, "out of memory");
    }
    json_decref((json_t *)(uintptr_t)root.object);
    if (status != 0) {
        tokenizer_close(t);
        return -1;
    }
    *result = t;
    return 0;
}
