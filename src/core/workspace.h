/* SPDX-License-Identifier: Apache-2.0
 *
 * The caller's workspace: its check, and a cursor that carves arrays from it. A backend runs one
 * routine over the cursor twice: with base NULL to count bytes, with the caller's pointer to get
 * addresses, so sizes and addresses agree.
 */
#ifndef GUMBEL_CORE_WORKSPACE_H
#define GUMBEL_CORE_WORKSPACE_H

#include "core/fail.h"

#include <stddef.h>
#include <stdint.h>

typedef struct gumbel_cursor {
    unsigned char *base; /* NULL: count only */
    size_t used;         /* SIZE_MAX once a size has overflowed */
} gumbel_cursor;

/* An array of rows * cols * size bytes, 64-byte aligned; NULL while counting or after an overflow.
 */
static inline void *gumbel_carve_array(gumbel_cursor *c, size_t rows, size_t cols, size_t size)
{
    size_t bytes, end;
    if (c->used == SIZE_MAX || __builtin_mul_overflow(rows, cols, &bytes) ||
        __builtin_mul_overflow(bytes, size, &bytes) ||
        __builtin_add_overflow(bytes, GUMBEL_WORKSPACE_ALIGNMENT - 1, &bytes) ||
        __builtin_add_overflow(c->used, bytes & ~(size_t)(GUMBEL_WORKSPACE_ALIGNMENT - 1), &end)) {
        c->used = SIZE_MAX;
        return NULL;
    }
    void *array = c->base ? c->base + c->used : NULL;
    c->used = end;
    return array;
}

/* Returns an error if the workspace has fewer than `needed` bytes or is not aligned. `source` names
 * the functions that return the size of this call. */
static inline gumbel_status gumbel_check_workspace(const void *workspace, size_t given,
                                                   size_t needed, const char *source,
                                                   gumbel_error *error)
{
    if (given < needed)
        return gumbel_fail(error, GUMBEL_ERROR_WORKSPACE, "workspace_bytes",
                           "%zu bytes were given, %zu are needed; use %s", given, needed, source);
    if (needed > 0 && (!workspace || (uintptr_t)workspace % GUMBEL_WORKSPACE_ALIGNMENT != 0))
        return gumbel_fail(error, GUMBEL_ERROR_WORKSPACE, "workspace",
                           workspace ? "is not aligned to %d bytes"
                                     : "is NULL; it must be memory aligned to %d bytes",
                           GUMBEL_WORKSPACE_ALIGNMENT);
    return GUMBEL_OK;
}

#endif
