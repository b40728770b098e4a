/* SPDX-License-Identifier: Apache-2.0
 *
 * Which known name a mistyped one may stand for.
 */
#ifndef GUMBEL_CLI_SUGGEST_H
#define GUMBEL_CLI_SUGGEST_H

#include <stddef.h>

/* Edits that turn a[0..a_size) into b: insertions, deletions, replacements, and swaps of two
 * neighbours. Sizes above SUGGEST_BYTES count as SUGGEST_BYTES + 1 edits. */
enum { SUGGEST_BYTES = 32 };
int edit_distance(const char *a, size_t a_size, const char *b);

/* Finds the closest name as names come one by one. */
struct suggestion {
    const char *given; /* [size] */
    size_t size;
    const char
        *closest; /* NULL while none is close enough: a third of its letters at most differ */
    int distance;
};

void suggestion_consider(struct suggestion *suggestion, const char *name);

#endif
