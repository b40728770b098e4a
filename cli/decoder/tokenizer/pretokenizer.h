/* SPDX-License-Identifier: Apache-2.0
 *
 * Cutting a text into words with Unicode regular expressions (PCRE2), before BPE sees it.
 */
#ifndef DECODER_PRETOKENIZER_H
#define DECODER_PRETOKENIZER_H

#include <stddef.h>

#include "decoder/error.h"

/* The pattern of ByteLevel with use_regex, as GPT-2 defined it. */
#define PRETOKENIZER_GPT2                                                                          \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

#define PRETOKENIZER_MAX_PATTERNS 8

/* A chain of patterns: what one cuts, the next cuts further. Read-only once built. */
typedef struct pretokenizer pretokenizer;

/* An empty chain, which takes a text as one word. NULL when memory runs out. */
pretokenizer *pretokenizer_new(void);

/* Free it. NULL is allowed. */
void pretokenizer_free(pretokenizer *p);

/* pretokenizer_add(): append a pattern. Its matches become words, and so does what lies between.
 *  pattern      [size] UTF-8
 *  file, field  where it stands, for messages
 *  returns      0; -1 with `error` filled. */
int pretokenizer_add(pretokenizer *p, const char *pattern, size_t size, const char *file,
                     const char *field, decoder_error *error);

/* Takes one word, never empty. Returns 0 to go on, else that value ends the split. */
typedef int (*pretokenizer_word)(void *context, const char *word, size_t size);

/* pretokenizer_split(): hand out the words of a text in order; together they are the text.
 *  text     [size] valid UTF-8
 *  file     for messages
 *  returns  0; what `word` returned if that was not 0; -1 with `error` filled where a pattern needs
 *           more steps than its limit (about 32 a byte) or memory runs out. */
int pretokenizer_split(const pretokenizer *p, const char *text, size_t size, pretokenizer_word word,
                       void *context, const char *file, decoder_error *error);

#endif /* DECODER_PRETOKENIZER_H */
