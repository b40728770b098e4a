/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/tokenizer/added_tokens.h"

#include <stdlib.h>
#include <string.h>

static int compare_added_tokens(const void *a, const void *b)
{
    const added_token *x = a, *y = b;
    int c = (unsigned char)x->content[0] - (unsigned char)y->content[0];
    return c != 0 ? c : (x->size < y->size) - (x->size > y->size);
}

void added_tokens_sort(added_tokens *added)
{
    if (added->count > 0) {
        qsort(added->tokens, added->count, sizeof *added->tokens, compare_added_tokens);
    }
    size_t at = 0;
    for (size_t byte = 0; byte <= 256; byte++) {
        while (at < added->count && (unsigned char)added->tokens[at].content[0] < byte) {
            at++;
        }
        added->first[byte] = at;
    }
}

const added_token *added_tokens_next(const added_tokens *added, bool normalized, const char *text,
                                     size_t size, size_t from, size_t *at)
{
    for (size_t i = from; i < size; i++) {
        unsigned char byte = (unsigned char)text[i];
        for (size_t k = added->first[byte]; k < added->first[byte + 1]; k++) {
            const added_token *token = &added->tokens[k];
            if (token->normalized == normalized && token->size <= size - i &&
                memcmp(token->content, text + i, token->size) == 0) {
                *at = i;
                return token;
            }
        }
    }
    return NULL;
}

const added_token *added_tokens_by_id(const added_tokens *added, int32_t id)
{
    for (size_t i = 0; i < added->count; i++) {
        if (added->tokens[i].id == id) {
            return &added->tokens[i];
        }
    }
    return NULL;
}

void added_tokens_free(added_tokens *added)
{
    for (size_t i = 0; i < added->count; i++) {
        free(added->tokens[i].content);
    }
    free(added->tokens);
    *added = (added_tokens){0};
}
