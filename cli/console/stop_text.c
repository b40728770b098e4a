/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "stop_text.h"

#include <string.h>

const char *find_stop_text(const struct text_list *stops, const char *text, size_t size,
                           size_t known, size_t *at)
{
    const char *found = NULL;

    for (int i = 0; i < stops->count; i++) {
        const size_t length = strlen(stops->items[i]);
        const size_t from = known < length ? 0 : known - length + 1;
        const char *place =
            from < size ? memmem(text + from, size - from, stops->items[i], length) : NULL;

        if (place && (!found || (size_t)(place - text) < *at)) {
            found = stops->items[i];
            *at = (size_t)(place - text);
        }
    }
    return found;
}

size_t count_held_bytes(const struct text_list *stops, const char *text, size_t size)
{
    size_t held = 0;

    for (int i = 0; i < stops->count; i++) {
        const size_t length = strlen(stops->items[i]);

        for (size_t count = length - 1 < size ? length - 1 : size; count > held; count--) {
            if (memcmp(text + size - count, stops->items[i], count) == 0) {
                held = count;
            }
        }
    }
    return held;
}
