/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers between two pages that may not be accessed, flush against the one or the other: any byte
 * read or written outside of them ends the program. No test framework.
 */
#ifndef TESTS_FENCES_H
#define TESTS_FENCES_H

#include <gumbel/gumbel.h>

typedef struct guarded {
    unsigned char *pages; /* guard, data pages, guard */
    size_t length;        /* of all */
    void *data;
} guarded;

/* `bytes` flush against the guard behind, or, `at_front`, the one before; filled from `content`
 * unless that is NULL. If `writable` is 0 the memory is read-only afterwards. */
guarded guard(const void *content, size_t bytes, int at_front, int writable);
void unguard(guarded *g);

/* Buffers that come and go together. */
typedef struct fence {
    guarded all[40];
    int count, at_front;
} fence;

/* A guarded copy of `content`, or an output where it is NULL. */
void *inside(fence *f, const void *content, size_t bytes, int writable);
void take_down(fence *f);

/* A read-only copy of a tensor, without the gap behind its last row. */
gumbel_tensor tensor_inside(fence *f, gumbel_tensor t);

#endif
