/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte-level BPE as tokenizer.json describes it: text to token ids and back.
 */
#ifndef DECODER_TOKENIZER_H
#define DECODER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decoder/error.h"
#include "decoder/tokenizer/token_list.h"

/* Read-only after opening: any thread may use it. */
typedef struct tokenizer tokenizer;

/* tokenizer_open(): read `folder`/tokenizer.json and, where it is there, the bos token named by
 * tokenizer_config.json. What the file asks for and this reader does not do is refused by name.
 *  result   receives the tokenizer, NULL on error. Release it with tokenizer_close().
 *  returns  0; -1 with `error` filled. */
int tokenizer_open(const char *folder, tokenizer **result, decoder_error *error);

/* tokenizer_parse(): the same from the bytes of a tokenizer.json, which need not outlive the call.
 * `name` stands for the path in messages, later ones too, and is copied. */
int tokenizer_parse(const void *bytes, size_t size, const char *name, tokenizer **result,
                    decoder_error *error);

/* Free it. NULL is allowed. */
void tokenizer_close(tokenizer *t);

/* One more than the largest token id. */
int32_t tokenizer_size(const tokenizer *t);

/* The id of the token written `content`, added tokens first; -1 where there is none. */
int32_t tokenizer_find(const tokenizer *t, const char *content);

/* tokenizer_encode(): append the ids of a text.
 *  text     [size] UTF-8; NUL bytes are text like others.
 *  special  also put the tokens around the text that its model expects at the start of a prompt:
 * what the post-processor adds, or else the bos token that tokenizer_config.json names, unless it
 * says add_bos_token false. The contents of added tokens are always recognised in the text. list on
 * an error it keeps the ids that it had. returns  0; -1 with `error` filled: invalid UTF-8 (with
 * its byte offset), the pattern's match limit, memory. */
int tokenizer_encode(const tokenizer *t, const char *text, size_t size, bool special,
                     token_list *list, decoder_error *error);

/* Turns ids into text one by one, whole UTF-8 characters only. Start from {0}. */
typedef struct token_stream {
    unsigned char pending[4]; /* the first bytes of a character that is not complete */
    size_t count;
} token_stream;

/* A piece of text: never ends within a character. */
typedef struct token_text {
    char *bytes; /* [size], and a NUL after them that does not count; the caller frees it */
    size_t size;
} token_text;

/* tokenizer_stream(): the text that becomes certain with token `id`; often all of it, sometimes
 * nothing yet. Bytes that are not UTF-8 become U+FFFD, one for each maximal part of a character.
 *  id            a token id; one that the tokenizer does not have is text of no length.
 *  skip_special  special tokens are text of no length.
 *  returns       0; -1 when memory runs out. */
int tokenizer_stream(const tokenizer *t, token_stream *stream, int32_t id, bool skip_special,
                     token_text *text);

/* The end of a stream: U+FFFD for an incomplete character, else nothing. Returns as above. */
int tokenizer_stream_end(token_stream *stream, token_text *text);

/* tokenizer_decode(): the text of `count` ids, as a stream gives it. Returns as above. */
int tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                     token_text *text);

#endif /* DECODER_TOKENIZER_H */
