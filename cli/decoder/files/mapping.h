/* SPDX-License-Identifier: Apache-2.0
 *
 * Maps a file into memory, read-only.
 */
#ifndef DECODER_MAPPING_H
#define DECODER_MAPPING_H

#include <stdbool.h>
#include <stddef.h>

#include "decoder/error.h"

typedef struct file_mapping {
    const unsigned char *data; /* page-aligned; not NULL while mapped, also for an empty file */
    size_t size;               /* bytes */
} file_mapping;

/* file_map(): maps a regular file. The file must not shrink while it is mapped: a read past the new
 * end raises SIGBUS.
 *  returns  0; -1 with `error` filled: not found, no permission, not a regular file, or another
 *           kind of file, such as a Git LFS pointer. */
int file_map(const char *path, file_mapping *mapping, decoder_error *error);

/* Unmaps and clears. A zeroed mapping is allowed. */
void file_unmap(file_mapping *mapping);

/* True if `path` can be opened for reading; for optional files of a model folder. */
bool file_exists(const char *path);

/* path_join(): "folder/name", allocated; the caller frees it. NULL when memory runs out. */
char *path_join(const char *folder, const char *name);

#endif /* DECODER_MAPPING_H */
