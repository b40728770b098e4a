/* SPDX-License-Identifier: Apache-2.0
 *
 * Suggestions for mistyped names.
 */
#ifndef GUMBEL_CLI_SUGGEST_H
#define GUMBEL_CLI_SUGGEST_H

#include <stddef.h>

/* Edit distance of a[0..a_size) and b: insertions, deletions, replacements, and swaps of two
 * neighbours; SUGGEST_BYTES + 1 for sizes above SUGGEST_BYTES. */
enum { SUGGEST_BYTES = 32 };
int edit_distance(const char *a, size_t a_size, const char *b);

/* The closest of the names considered so far. */
struct suggestion {
    const char *given; /* [size] */
    size_t size;
    const char *closest; /* NULL: none within a third of its letters */
    int distance;
};

void suggestion_consider(struct suggestion *suggestion, const char *name);

#endif
