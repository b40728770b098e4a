/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "decoder/tokenizer/byte_alphabet.h"
#include "decoder/tokenizer/tokenizer_load.h"
#include "decoder/tokenizer/tokenizer_parts.h"

int tokenizer_reject_variants(const json_place *model)
{
    const char *type = "BPE", *prefix = "", *suffix = "";
    bool byte_fallback = false;
    double dropout = 0;
    if (json_text(model, "type", false, &type) != 0 ||
        json_number_in(model, "dropout", false, 0, 0, &dropout) != 0 ||
        json_flag(model, "byte_fallback", false, &byte_fallback) != 0 ||
        json_text(model, "continuing_subword_prefix", false, &prefix) != 0 ||
        json_text(model, "end_of_word_suffix", false, &suffix) != 0) {
        return -1;
    }
    if (strcmp(type, "BPE") != 0) {
        return json_fail(model, "type", "\"%.64s\" is not supported; byte-level BPE is", type);
    }
    if (byte_fallback) {
        return json_fail(model, "byte_fallback",
                         "true is not supported: this is a tokenizer of SentencePiece, as Llama 2 "
                         "and Mistral have; byte-level BPE is supported, as Llama 3 and Qwen3 "
                         "have");
    }
    if (prefix[0] || suffix[0]) {
        return json_fail(model, prefix[0] ? "continuing_subword_prefix" : "end_of_word_suffix",
                         "is not supported");
    }
    return 0;
}

/* The largest id, and the bytes of all spellings together. */
static int measure_vocab(const json_place *model, json_t *vocab, int32_t *size, size_t *bytes)
{
    const char *spelling;
    json_t *value;
    *size = 0;
    *bytes = 0;
    json_object_foreach (vocab, spelling, value) {
        int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= BPE_MAX_TOKENS) {
            return json_fail(model, "vocab", "\"%.64s\" has no id in [0, %d)", spelling,
                             BPE_MAX_TOKENS);
        }
        *size = id >= *size ? (int32_t)id + 1 : *size;
        *bytes += strlen(spelling);
    }
    if (*bytes > INT32_MAX / 4) {
        return json_fail(model, "vocab", "has %zu bytes of text, too many", *bytes);
    }
    return 0;
}

static int add_token(const json_place *model, bpe *b, const char *spelling, int32_t id,
                     unsigned char *bytes)
{
    size_t size = strlen(spelling), written = 0;
    size_t taken;
    if (size == 0) {
        return json_fail(model, "vocab", "has an empty token");
    }
    if (bpe_token(b, id, &taken)) {
        return json_fail(model, "vocab", "gives id %d to two tokens", id);
    }
    /* No word becomes a spelling outside the alphabet, which stands for its own characters. */
    bool indexed = alphabet_to_bytes(spelling, size, bytes, &written);
    if (indexed) {
        bpe_add_token(b, id, bytes, written, true);
    } else {
        bpe_add_token(b, id, (const unsigned char *)spelling, size, false);
    }
    return 0;
}

static int read_vocab(const json_place *model, json_t *vocab, bpe *b, size_t bytes)
{
    unsigned char *buffer = malloc(bytes + 1);
    if (!buffer) {
        return json_fail(model, "vocab", "out of memory");
    }
    const char *spelling;
    json_t *value;
    int result = 0;
    json_object_foreach (vocab, spelling, value) {
        result = add_token(model, b, spelling, (int32_t)json_integer_value(value), buffer);
        if (result != 0) {
            break;
        }
    }
    free(buffer);
    for (int byte = 0; byte < 256 && result == 0; byte++) {
        unsigned char single = (unsigned char)byte;
        if (bpe_find(b, &single, 1) < 0) {
            result = json_fail(model, "vocab", "has no token for the byte 0x%02x", byte);
        }
    }
    return result;
}

/* The id of a spelling of `size` bytes; -1 if no word becomes it. */
static int32_t find_spelling(const bpe *b, const char *spelling, size_t size, unsigned char *bytes)
{
    size_t written;
    return alphabet_to_bytes(spelling, size, bytes, &written) ? bpe_find(b, bytes, written) : -1;
}

/* "FIRST SECOND" or ["FIRST", "SECOND"]. */
static bool merge_parts(const json_t *entry, const char *parts[2], size_t sizes[2])
{
    if (json_is_string(entry)) {
        const char *text = json_string_value(entry);
        const char *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' ')) {
            return false;
        }
        parts[0] = text;
        sizes[0] = (size_t)(space - text);
        parts[1] = space + 1;
        sizes[1] = strlen(parts[1]);
        return true;
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *part = json_array_get(entry, i);
        parts[i] = json_string_value(part);
        sizes[i] = json_string_length(part);
    }
    return json_array_size(entry) == 2 && parts[0] && parts[1];
}

static int read_merges(const json_place *model, const json_t *merges, bpe *b, size_t bytes)
{
    unsigned char *buffer = malloc(bytes + 1);
    if (!buffer) {
        return json_fail(model, "merges", "out of memory");
    }
    int result = 0;
    size_t index;
    const json_t *entry;
    json_array_foreach (merges, index, entry) {
        const char *parts[2];
        size_t sizes[2];
        /* A part longer than all tokens together is no token. */
        if (!merge_parts(entry, parts, sizes) || sizes[0] > bytes || sizes[1] > bytes) {
            result = json_fail(model, "merges", "entry %zu is not a pair of tokens", index);
            break;
        }
        int32_t first = find_spelling(b, parts[0], sizes[0], buffer);
        int32_t second = find_spelling(b, parts[1], sizes[1], buffer);
        if (first < 0 || second < 0 || bpe_add_merge(b, first, second) != 0) {
            result = json_fail(model, "merges", "entry %zu is of tokens that the vocabulary lacks",
                               index);
            break;
        }
    }
    free(buffer);
    return result;
}

int tokenizer_load_model(tokenizer *t, const json_place *model)
{
    json_t *vocab = json_value(model, "vocab");
    const json_t *merges = json_value(model, "merges");
    int32_t size;
    size_t bytes;
    if (!json_is_object(vocab) || !json_is_array(merges)) {
        return json_fail(model, json_is_object(vocab) ? "merges" : "vocab",
                         "is missing or of the wrong type");
    }
    if (json_flag(model, "ignore_merges", false, &t->ignore_merges) != 0 ||
        measure_vocab(model, vocab, &size, &bytes) != 0) {
        return -1;
    }
    if (size > t->size) {
        t->size = size;
    }
    t->bpe = bpe_new(size, bytes, json_array_size(merges));
    if (!t->bpe) {
        return json_fail(model, NULL, "out of memory");
    }
    return read_vocab(model, vocab, t->bpe, bytes) != 0 ||
                   read_merges(model, merges, t->bpe, bytes) != 0
               ? -1
               : 0;
}
