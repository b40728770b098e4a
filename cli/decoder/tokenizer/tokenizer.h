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

/* tokenizer_open(): reads `folder`/tokenizer.json and, if present, the bos token named by
 * tokenizer_config.json. A feature of the file that is not supported is an error that names it.
 *  result   receives the tokenizer, NULL on error. Release it with tokenizer_close().
 *  returns  0; -1 with `error` filled. */
int tokenizer_open(const char *folder, tokenizer **result, decoder_error *error);

/* tokenizer_parse(): tokenizer_open() from the bytes of a tokenizer.json, which need not outlive
 * the call. `name` replaces the path in messages, also later ones, and is copied. */
int tokenizer_parse(const void *bytes, size_t size, const char *name, tokenizer **result,
                    decoder_error *error);

/* Frees it. NULL is allowed. */
void tokenizer_close(tokenizer *t);

/* The largest token id + 1. */
int32_t tokenizer_size(const tokenizer *t);

/* The id of the token written `content`, added tokens first; -1: none. */
int32_t tokenizer_find(const tokenizer *t, const char *content);

/* tokenizer_encode(): appends the ids of a text. Added tokens are always recognised in the text.
 *  text     [size] UTF-8; NUL bytes are allowed.
 *  special  also adds the special tokens of a prompt: those of the post-processor, or else the bos
 *           token of tokenizer_config.json, unless its add_bos_token is false.
 *  list     unchanged after an error.
 *  returns  0; -1 with `error` filled: invalid UTF-8 (with its byte offset), the pattern's limit of
 *           steps, memory. */
int tokenizer_encode(const tokenizer *t, const char *text, size_t size, bool special,
                     token_list *list, decoder_error *error);

/* State that decodes ids one by one into whole UTF-8 characters. Start from {0}. */
typedef struct token_stream {
    unsigned char pending[4]; /* the first bytes of an incomplete character */
    size_t count;
} token_stream;

/* Decoded text of whole characters. */
typedef struct token_text {
    char *bytes; /* [size] and a NUL; the caller frees it */
    size_t size;
} token_text;

/* tokenizer_stream(): the characters that token `id` completes, possibly none. Bytes that are not
 * UTF-8 become U+FFFD, one for each maximal part of a character.
 *  id            a token id; an unknown id gives no text.
 *  skip_special  special tokens give no text.
 *  returns       0; -1 when memory runs out. */
int tokenizer_stream(const tokenizer *t, token_stream *stream, int32_t id, bool skip_special,
                     token_text *text);

/* Ends a stream: U+FFFD for an incomplete character, else no text. Returns as
 * tokenizer_stream(). */
int tokenizer_stream_end(token_stream *stream, token_text *text);

/* tokenizer_decode(): the text of `count` ids, as a stream gives it. Returns as
 * tokenizer_stream(). */
int tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                     token_text *text);

#endif /* DECODER_TOKENIZER_H */
