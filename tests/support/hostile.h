/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile contents of a workspace before a call. Nobody clears a workspace, so a call that reads
 * memory which it has not written must fail a test.
 */
#ifndef TESTS_HOSTILE_H
#define TESTS_HOSTILE_H

#include <stddef.h>

/* Fill memory with what an earlier owner may have left there: NaN, infinities, the largest and the
 * least float, likely logits, zeros, noise. Each call fills another kind; the order is the same in every run. */
void hostile_fill(void *memory, size_t bytes);

#endif
