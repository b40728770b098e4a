/* SPDX-License-Identifier: Apache-2.0
 *
 * Carving the caller's workspace. One routine of the backend runs over a cursor twice: with base
 * NULL it counts, with the caller's pointer it hands out, so the two cannot disagree.
 */
#ifndef GUMBEL_CORE_WORKSPACE_H
#define GUMBEL_CORE_WORKSPACE_H

#include "gumbel/gumbel.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gumbel_cursor {
    unsigned char *base; /* NULL: count only */
    size_t used;         /* SIZE_MAX once a size has overflowed */
} gumbel_cursor;

/* The next rows * cols * size bytes, 64-byte aligned; NULL while counting or after an overflow. */
static inline void *gumbel_carve(gumbel_cursor *c, size_t rows, size_t cols, size_t size)
{
    size_t bytes, end;
    if (c->used == SIZE_MAX || __builtin_mul_overflow(rows, cols, &bytes) ||
        __builtin_mul_overflow(bytes, size, &bytes) ||
        __builtin_add_overflow(bytes, GUMBEL_WORKSPACE_ALIGNMENT - 1, &bytes) ||
        __builtin_add_overflow(c->used, bytes & ~(size_t)(GUMBEL_WORKSPACE_ALIGNMENT - 1), &end)) {
        c->used = SIZE_MAX;
        return NULL;
    }
    void *piece = c->base ? c->base + c->used : NULL;
    c->used = end;
    return piece;
}

#endif
