/* SPDX-License-Identifier: Apache-2.0
 *
 * Added tokens: contents that are cut out of a text before anything else looks at it.
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
    bool normalized; /* looked for in the normalised text, not in the text itself */
} added_token;

typedef struct added_tokens {
    added_token *tokens; /* [count] */
    size_t count;
    size_t first[257]; /* once sorted: tokens that begin with byte c are first[c] .. first[c+1] */
} added_tokens;

/* Put the tokens in matching order: by first byte, longer ones first. */
void added_tokens_sort(added_tokens *added);

/* added_tokens_next(): the leftmost token at or after `from`, of those at that place the longest.
 *  normalized  which of the two kinds to look for
 *  at          receives where it begins
 *  returns     NULL where there is none. */
const added_token *added_tokens_next(const added_tokens *added, bool normalized, const char *text,
                                     size_t size, size_t from, size_t *at);

/* The token with this id; NULL where there is none. */
const added_token *added_tokens_by_id(const added_tokens *added, int32_t id);

/* Free the contents and empty the list. */
void added_tokens_free(added_tokens *added);

#endif /* DECODER_ADDED_TOKENS_H */
