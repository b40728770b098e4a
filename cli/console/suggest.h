/* SPDX-License-Identifier: Apache-2.0
 *
 * Suggestions for mistyped names.
 */
#ifndef GUMBEL_CLI_SUGGEST_H
#define GUMBEL_CLI_SUGGEST_H

#include <stddef.h>

/* Edit distance of a[0..a_size) and b, by insertions, deletions, replacements, and swaps of two
 * neighbours. Returns SUGGEST_BYTES + 1 if either is longer than SUGGEST_BYTES. */
enum { SUGGEST_BYTES = 32 };
int edit_distance(const char *a, size_t a_size, const char *b);

/* The closest of the names considered so far. */
struct suggestion {
    const char *given; /* [size] the mistyped name */
    size_t size;
    const char *closest; /* NULL if no name is within a third of its own length, rounded up */
    int distance;
};

void suggestion_consider(struct suggestion *suggestion, const char *name);

#endif
