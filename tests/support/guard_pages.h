/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers between two pages that may not be accessed, flush against the one or the other: any byte
 * read or written outside of them ends the program. No test framework.
 */
#ifndef TESTS_FENCES_H
#define TESTS_FENCES_H

#include <gumbel/gumbel.h>

typedef struct guarded_buffer {
    unsigned char *pages; /* guard, data pages, guard */
    size_t length;        /* of all */
    void *data;
} guarded_buffer;

/* `bytes` flush against the guard behind, or, `at_front`, the one before; filled from `content`
 * unless that is NULL. If `writable` is 0 the memory is read-only afterwards. */
guarded_buffer make_guarded_buffer(const void *content, size_t bytes, int at_front, int writable);
void free_guarded_buffer(guarded_buffer *g);

/* Buffers that come and go together. */
typedef struct guard_set {
    guarded_buffer all[40];
    int count, at_front;
} guard_set;

/* A guarded copy of `content`, or an output where it is NULL. */
void *guard_copy(guard_set *f, const void *content, size_t bytes, int writable);
void free_guard_set(guard_set *f);

/* A read-only copy of a tensor, without the gap behind its last row. */
gumbel_tensor guard_tensor(guard_set *f, gumbel_tensor t);

#endif
