/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers between two inaccessible pages, adjacent to one of them: an access beyond that end of the
 * buffer stops the program. No test framework.
 */
#ifndef TESTS_FENCES_H
#define TESTS_FENCES_H

#include <gumbel/gumbel.h>

typedef struct guarded_buffer {
    unsigned char *pages; /* guard, data pages, guard */
    size_t length;        /* of all */
    void *data;
} guarded_buffer;

/* A buffer of `bytes` adjacent to the guard page after it or, with `at_front`, to the one before
 * it; filled from `content` unless NULL. If `writable` is 0, the memory is read-only afterwards. */
guarded_buffer make_guarded_buffer(const void *content, size_t bytes, int at_front, int writable);
void free_guarded_buffer(guarded_buffer *g);

/* Guarded buffers that are freed together. */
typedef struct guard_set {
    guarded_buffer all[64];
    int count, at_front;
} guard_set;

/* Adds a guarded copy of `content` or, if `content` is NULL, an uninitialised buffer. */
void *guard_copy(guard_set *f, const void *content, size_t bytes, int writable);
void free_guard_set(guard_set *f);

/* Adds a read-only copy of a tensor, without the gap after its last row. */
gumbel_tensor guard_tensor(guard_set *f, gumbel_tensor t);

#endif
