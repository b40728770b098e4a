/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "decoder/tokenizer/tokenizer_parts.h"

/* Symbols of a word and byte offsets are 32-bit numbers. */
#define TEXT_MAX ((size_t)1 << 30)

void tokenizer_close(tokenizer *t)
{
    if (t) {
        added_tokens_free(&t->added);
        pretokenizer_free(t->pretokenizer);
        bpe_free(t->bpe);
        token_list_free(&t->before);
        token_list_free(&t->after);
        free(t->path);
        free(t);
    }
}

int32_t tokenizer_size(const tokenizer *t) { return t->size; }

int32_t tokenizer_find(const tokenizer *t, const char *content)
{
    size_t size = strlen(content);
    for (size_t i = 0; i < t->added.count; i++) {
        const added_token *token = &t->added.tokens[i];
        if (token->size == size && memcmp(token->content, content, size) == 0) {
            return token->id;
        }
    }
    return bpe_find(t->bpe, (const unsigned char *)content, size);
}

/* The state of one call of tokenizer_encode(). */
typedef struct encoding {
    const tokenizer *t;
    token_list *list;
    bpe_scratch scratch;
    decoder_error *error;
} encoding;

static int out_of_memory(const encoding *e)
{
    return decoder_fail(e->error, e->t->path, NULL, "out of memory");
}

static int encode_word(void *context, const char *word, size_t size)
{
    encoding *e = context;
    if (bpe_encode(e->t->bpe, (const unsigned char *)word, size, e->t->ignore_merges, &e->scratch,
                   e->list) != 0) {
        return out_of_memory(e);
    }
    return 0;
}

static int encode_plain(encoding *e, const char *text, size_t size)
{
    return pretokenizer_split(e->t->pretokenizer, text, size, encode_word, e, e->t->path, e->error);
}

typedef int (*encode_span)(encoding *e, const char *text, size_t size);

/* Encodes added tokens of one kind as their ids, and the text between them by `between`. */
static int split_at_added(encoding *e, bool normalized, const char *text, size_t size,
                          encode_span between)
{
    size_t done = 0, at = 0;
    const added_token *token;
    while ((token = added_tokens_next(&e->t->added, normalized, text, size, done, &at))) {
        if (between(e, text + done, at - done) != 0) {
            return -1;
        }
        if (token_list_append(e->list, &token->id, 1) != 0) {
            return out_of_memory(e);
        }
        done = at + token->size;
    }
    return between(e, text + done, size - done);
}

static int encode_normalized(encoding *e, const char *text, size_t size)
{
    return split_at_added(e, true, text, size, encode_plain);
}

static bool is_ascii(const char *text, size_t size)
{
    unsigned char any = 0;
    for (size_t i = 0; i < size; i++) {
        any |= (unsigned char)text[i];
    }
    return any < 0x80;
}

static int normalize_and_encode(encoding *e, const char *text, size_t size)
{
    if (!e->t->nfc || is_ascii(text, size)) {
        return encode_normalized(e, text, size);
    }
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size,
                                           &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (length < 0) {
        return decoder_fail(e->error, e->t->path, "normalizer", "%s", utf8proc_errmsg(length));
    }
    int result = encode_normalized(e, (const char *)composed, (size_t)length);
    free(composed);
    return result;
}

/* The offset of the first byte that is not UTF-8; `size` if there is none. */
static size_t utf8_prefix(const char *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        utf8proc_int32_t character;
        utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                   (utf8proc_ssize_t)(size - at), &character);
        if (length < 1) {
            break;
        }
        at += (size_t)length;
    }
    return at;
}

int tokenizer_encode(const tokenizer *t, const char *text, size_t size, bool special,
                     token_list *list, decoder_error *error)
{
    if (size > TEXT_MAX) {
        return decoder_fail(error, NULL, "text", "has %zu bytes, more than %zu", size, TEXT_MAX);
    }
    size_t valid = utf8_prefix(text, size);
    if (valid < size) {
        return decoder_fail(error, NULL, "text", "is not UTF-8 at byte offset %zu", valid);
    }
    encoding e = {.t = t, .list = list, .error = error};
    size_t had = list->count;
    int result = 0;
    if (special && token_list_append(list, t->before.ids, t->before.count) != 0) {
        result = out_of_memory(&e);
    }
    if (result == 0) {
        result = split_at_added(&e, false, text, size, normalize_and_encode);
    }
    if (result == 0 && special && token_list_append(list, t->after.ids, t->after.count) != 0) {
        result = out_of_memory(&e);
    }
    if (result != 0) {
        list->count = had;
    }
    free(e.scratch.memory);
    return result;
}
