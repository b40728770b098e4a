/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits a text into words by Unicode regular expressions (PCRE2), before BPE.
 */
#ifndef DECODER_PRETOKENIZER_H
#define DECODER_PRETOKENIZER_H

#include <stddef.h>

#include "decoder/error.h"

/* The pattern of ByteLevel with use_regex, as GPT-2 defined it. */
#define PRETOKENIZER_GPT2                                                                          \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

#define PRETOKENIZER_MAX_PATTERNS 8

/* A chain of patterns: each splits the words of the previous one. Immutable once built. */
typedef struct pretokenizer pretokenizer;

/* An empty chain: a text is one word. NULL when memory runs out. */
pretokenizer *pretokenizer_new(void);

/* Frees it. NULL is allowed. */
void pretokenizer_free(pretokenizer *p);

/* pretokenizer_add(): appends a pattern. Its matches and the text between them become words.
 *  pattern      [size] UTF-8
 *  file, field  its source, for messages
 *  returns      0; -1 with `error` filled. */
int pretokenizer_add(pretokenizer *p, const char *pattern, size_t size, const char *file,
                     const char *field, decoder_error *error);

/* Receives one word, not empty. Returns 0 to continue; another value ends the split. */
typedef int (*pretokenizer_word)(void *context, const char *word, size_t size);

/* pretokenizer_split(): calls `word` for the words of a text in order; joined they are the text.
 *  text     [size] valid UTF-8
 *  file     for messages
 *  returns  0; the result of `word` if not 0; -1 with `error` filled if a pattern exceeds its limit
 *           of steps (about 32 a byte) or memory runs out. */
int pretokenizer_split(const pretokenizer *p, const char *text, size_t size, pretokenizer_word word,
                       void *context, const char *file, decoder_error *error);

#endif /* DECODER_PRETOKENIZER_H */
