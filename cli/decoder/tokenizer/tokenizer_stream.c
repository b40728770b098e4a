/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "decoder/tokenizer/tokenizer.h"
#include "decoder/tokenizer/tokenizer_parts.h"

/* Largest number of bytes of an incomplete character. */
#define PENDING_MAX 3

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* The bytes of a token id. */
static const unsigned char *find_bytes(const tokenizer *t, int32_t id, bool skip_special,
                                       size_t *size)
{
    const added_token *added = added_tokens_by_id(&t->added, id);
    if (!added) {
        return bpe_token(t->bpe, id, size);
    }
    *size = skip_special && added->special ? 0 : added->size;
    return (const unsigned char *)added->content;
}

/* State of the pending bytes of a character. */
typedef enum utf8_state { UTF8_COMPLETE, UTF8_PREFIX, UTF8_INVALID } utf8_state;

/* True if `second` may follow `lead`: no overlong forms, surrogates, numbers above U+10FFFF. */
static bool second_byte_fits(unsigned char lead, unsigned char second)
{
    unsigned char lo = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char hi = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    return second >= lo && second <= hi;
}

static utf8_state utf8_check(const unsigned char *bytes, size_t count)
{
    unsigned char lead = bytes[0];
    size_t length = lead < 0x80                   ? 1
                    : lead >= 0xc2 && lead < 0xe0 ? 2
                    : lead >= 0xe0 && lead < 0xf0 ? 3
                    : lead >= 0xf0 && lead < 0xf5 ? 4
                                                  : 0;
    if (length == 0 || (count > 1 && !second_byte_fits(lead, bytes[1]))) {
        return UTF8_INVALID;
    }
    for (size_t i = 2; i < count; i++) {
        if ((bytes[i] & 0xc0) != 0x80) {
            return UTF8_INVALID;
        }
    }
    return count == length ? UTF8_COMPLETE : UTF8_PREFIX;
}

static void put_bytes(token_text *text, const void *bytes, size_t size)
{
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
}

/* Adds a byte to the stream. */
static void add_byte(token_stream *stream, unsigned char byte, token_text *text)
{
    stream->pending[stream->count++] = byte;
    utf8_state state = utf8_check(stream->pending, stream->count);
    if (state == UTF8_INVALID && stream->count > 1) {
        /* The pending bytes are a broken character; this byte may begin another. */
        put_bytes(text, replacement, 3);
        stream->pending[0] = byte;
        stream->count = 1;
        state = utf8_check(stream->pending, 1);
    }
    if (state == UTF8_INVALID) {
        put_bytes(text, replacement, 3);
        stream->count = 0;
    } else if (state == UTF8_COMPLETE) {
        put_bytes(text, stream->pending, stream->count);
        stream->count = 0;
    }
}

/* Allocates room for the text of `count` bytes of input and the pending bytes, and a NUL. */
static int reserve_text(token_text *text, size_t count)
{
    *text = (token_text){0};
    if (count > SIZE_MAX / 4 - PENDING_MAX) {
        return -1;
    }
    /* An invalid byte, also a pending one, becomes three. */
    text->bytes = malloc(3 * (count + PENDING_MAX) + 1);
    return text->bytes ? 0 : -1;
}

static void add_token(const tokenizer *t, token_stream *stream, int32_t id, bool skip_special,
                      token_text *text)
{
    size_t size;
    const unsigned char *bytes = find_bytes(t, id, skip_special, &size);
    for (size_t i = 0; i < size; i++) {
        add_byte(stream, bytes[i], text);
    }
    text->bytes[text->size] = '\0';
}

static void add_end(token_stream *stream, token_text *text)
{
    if (stream->count > 0) {
        put_bytes(text, replacement, 3);
        stream->count = 0;
    }
    text->bytes[text->size] = '\0';
}

int tokenizer_decode_next(const tokenizer *t, token_stream *stream, int32_t id, bool skip_special,
                          token_text *text)
{
    size_t size;
    find_bytes(t, id, skip_special, &size);
    if (reserve_text(text, size) != 0) {
        return -1;
    }
    add_token(t, stream, id, skip_special, text);
    return 0;
}

int tokenizer_decode_end(token_stream *stream, token_text *text)
{
    if (reserve_text(text, 0) != 0) {
        return -1;
    }
    add_end(stream, text);
    return 0;
}

int tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                     token_text *text)
{
    token_stream stream = {0};
    size_t total = 0, size;
    for (size_t i = 0; i < count; i++) {
        find_bytes(t, ids[i], skip_special, &size);
        if (__builtin_add_overflow(total, size, &total)) {
            return -1;
        }
    }
    if (reserve_text(text, total) != 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        add_token(t, &stream, ids[i], skip_special, text);
    }
    add_end(&stream, text);
    return 0;
}
