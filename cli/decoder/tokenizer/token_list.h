/* SPDX-License-Identifier: Apache-2.0
 *
 * Token ids, as many as there come.
 */
#ifndef DECODER_TOKEN_LIST_H
#define DECODER_TOKEN_LIST_H

#include <stddef.h>
#include <stdint.h>

/* A growing list of token ids. Start from {0}; free with token_list_free(). */
typedef struct token_list {
    int32_t *ids; /* [count] */
    size_t count;
    size_t capacity;
} token_list;

/* Append `count` ids. Returns 0; -1 when memory runs out, with the list as it was. */
int token_list_append(token_list *list, const int32_t *ids, size_t count);

/* Free the ids and empty the list. */
void token_list_free(token_list *list);

#endif
