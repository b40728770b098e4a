/* SPDX-License-Identifier: Apache-2.0
 *
 * Added tokens: strings that are matched in a text before it is split into words.
 */
#ifndef DECODER_ADDED_TOKENS_H
#define DECODER_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct added_token {
    char *content; /* owned, not empty */
    size_t size;
    int32_t id;
    bool special;
    bool normalized; /* matched in the normalised text, not in the original */
} added_token;

typedef struct added_tokens {
    added_token *tokens; /* [count] */
    size_t count;
    size_t first[257]; /* once sorted: tokens that begin with byte c are first[c] .. first[c+1] */
} added_tokens;

/* Sorts the tokens for matching: by first byte, longer ones first. */
void added_tokens_sort(added_tokens *added);

/* added_tokens_next(): the leftmost token at or after `from`, and the longest at that offset.
 *  normalized  the kind of tokens to match
 *  at          receives the offset where it begins
 *  returns     NULL if there is none. */
const added_token *added_tokens_next(const added_tokens *added, bool normalized, const char *text,
                                     size_t size, size_t from, size_t *at);

/* The token with this id; NULL: none. */
const added_token *added_tokens_by_id(const added_tokens *added, int32_t id);

/* Frees the contents and empties the list. */
void added_tokens_free(added_tokens *added);

#endif /* DECODER_ADDED_TOKENS_H */
