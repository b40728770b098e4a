/* SPDX-License-Identifier: Apache-2.0
 *
 * A file, mapped into memory read-only. Model files are larger than what one wants to copy.
 */
#ifndef DECODER_MAPPING_H
#define DECODER_MAPPING_H

#include <stdbool.h>
#include <stddef.h>

#include "decoder/error.h"

typedef struct file_mapping {
    const unsigned char *data; /* page-aligned; not NULL once mapped, also for an empty file */
    size_t size;               /* bytes */
} file_mapping;

/* file_map(): map a regular file. The file must not be shortened while it is mapped: the system
 * answers a read past the new end with SIGBUS.
 *  returns  0; -1 (not there, no permission, not a regular file, a file of another kind, such as a
 *           Git LFS pointer) with `error` filled. */
int file_map(const char *path, file_mapping *mapping, decoder_error *error);

/* Unmap and clear. A zeroed mapping is allowed. */
void file_unmap(file_mapping *mapping);

/* Whether `path` can be opened for reading. For files that a model folder may or may not have. */
bool file_exists(const char *path);

/* path_join(): "folder/name", allocated; the caller frees it. NULL when memory runs out. */
char *path_join(const char *folder, const char *name);

#endif /* DECODER_MAPPING_H */
