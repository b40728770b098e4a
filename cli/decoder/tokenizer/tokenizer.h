/* SPDX-License-Identifier: Apache-2.0
 *
 * A byte-level BPE tokenizer, read from tokenizer.json: text to token ids and back.
 */
#ifndef DECODER_TOKENIZER_H
#define DECODER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decoder/error.h"
#include "decoder/tokenizer/token_list.h"

/* Immutable: any thread may use it. */
typedef struct tokenizer tokenizer;

/* tokenizer_open(): reads `folder`/tokenizer.json and, if present, the bos token that
 * tokenizer_config.json names. An unsupported feature of the file is an error that names it.
 *  result   receives the tokenizer, NULL on error. Release it with tokenizer_close().
 *  returns  0; -1 with `error` filled. */
int tokenizer_open(const char *folder, tokenizer **result, decoder_error *error);

/* tokenizer_parse(): as tokenizer_open(), from the bytes of a tokenizer.json, which need not
 * outlive the call. `name` is copied; it stands for the path in the tokenizer's error messages. */
int tokenizer_parse(const void *bytes, size_t size, const char *name, tokenizer **result,
                    decoder_error *error);

/* Frees it. NULL is allowed. */
void tokenizer_close(tokenizer *t);

/* Returns the largest token id + 1. */
int32_t tokenizer_size(const tokenizer *t);

/* Returns the id of the token whose text is `content`; of several the added token's; -1: none. */
int32_t tokenizer_find(const tokenizer *t, const char *content);

/* tokenizer_encode(): appends the token ids of a text to `list`. Added tokens that the text
 * contains are recognised.
 *  text     [size] UTF-8; NUL bytes are allowed.
 *  special  true: also append a prompt's special tokens, which the post-processor names; without a
 *           post-processor the bos token of tokenizer_config.json, unless add_bos_token is false.
 *  list     unchanged after an error.
 *  returns  0; -1 with `error` filled: invalid UTF-8 (with its byte offset), the pattern's limit of
 *           steps, out of memory. */
int tokenizer_encode(const tokenizer *t, const char *text, size_t size, bool special,
                     token_list *list, decoder_error *error);

/* State of decoding ids one by one into whole UTF-8 characters. Start from {0}. */
typedef struct token_stream {
    unsigned char pending[4]; /* the first bytes of an incomplete character */
    size_t count;
} token_stream;

/* Decoded text of whole characters. */
typedef struct token_text {
    char *bytes; /* [size], then a NUL; the caller frees it */
    size_t size;
} token_text;

/* tokenizer_decode_next(): appends a token to a stream and returns the characters that it
 * completes, possibly none. An invalid byte, or the longest valid start of an incomplete character,
 * becomes one U+FFFD.
 *  id            a token id; an unknown id gives no text.
 *  skip_special  true: special tokens give no text.
 *  returns       0; -1 if memory runs out. */
int tokenizer_decode_next(const tokenizer *t, token_stream *stream, int32_t id, bool skip_special,
                          token_text *text);

/* Ends a stream: the text is U+FFFD after an incomplete character, otherwise empty. Returns as
 * tokenizer_decode_next(). */
int tokenizer_decode_end(token_stream *stream, token_text *text);

/* tokenizer_decode(): the text of `count` ids, equal to that of a stream. Returns as
 * tokenizer_decode_next(). */
int tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                     token_text *text);

#endif /* DECODER_TOKENIZER_H */
