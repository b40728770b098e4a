/* SPDX-License-Identifier: Apache-2.0
 *
 * What a workspace may hold before a call: nobody clears it, so a call that reads what it has not
 * written must be seen to do so.
 */
#ifndef TESTS_HOSTILE_H
#define TESTS_HOSTILE_H

#include <stddef.h>

/* Fill memory with what an earlier owner may have left there: NaN, infinities, the largest and the
 * least float, likely logits, zeros, noise. Each time another one, the same in every run that asks
 * in the same order. */
void hostile_fill(void *memory, size_t bytes);

#endif
