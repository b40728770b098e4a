/* SPDX-License-Identifier: Apache-2.0
 *
 * A growing list of token ids.
 */
#ifndef DECODER_TOKEN_LIST_H
#define DECODER_TOKEN_LIST_H

#include <stddef.h>
#include <stdint.h>

/* Start from {0}; free with token_list_free(). */
typedef struct token_list {
    int32_t *ids; /* [count] */
    size_t count;
    size_t capacity;
} token_list;

/* Appends `count` ids. Returns 0; -1 when memory runs out, with the list unchanged. */
int token_list_append(token_list *list, const int32_t *ids, size_t count);

/* Frees the ids and empties the list. */
void token_list_free(token_list *list);

#endif
