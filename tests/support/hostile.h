/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile initial contents of a workspace. Engines do not clear a workspace, so a call that reads
 * memory before writing it must fail a test.
 */
#ifndef TESTS_HOSTILE_H
#define TESTS_HOSTILE_H

#include <stddef.h>

/* Fills memory with one kind of arbitrary contents: NaN, infinities, the largest or the lowest
 * float, likely logits, zeros, random bits. Each call uses the next kind, in the same order in
 * every run. */
void hostile_fill(void *memory, size_t bytes);

#endif
