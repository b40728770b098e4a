/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/tokenizer/token_list.h"

#include <stdlib.h>
#include <string.h>

int token_list_append(token_list *list, const int32_t *ids, size_t count)
{
    if (count > list->capacity - list->count) {
        size_t capacity = 2 * list->capacity + count + 16;
        if (capacity > SIZE_MAX / sizeof *ids) {
            return -1;
        }
        int32_t *grown = realloc(list->ids, capacity * sizeof *ids);
        if (!grown) {
            return -1;
        }
        list->ids = grown;
        list->capacity = capacity;
    }
    if (count > 0) {
        memcpy(list->ids + list->count, ids, count * sizeof *ids);
    }
    list->count += count;
    return 0;
}

void token_list_free(token_list *list)
{
    free(list->ids);
    *list = (token_list){0};
}
