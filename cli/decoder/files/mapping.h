/* SPDX-License-Identifier: Apache-2.0
 *
 * Maps files into memory, read-only, and finds files of a model folder.
 */
#ifndef DECODER_MAPPING_H
#define DECODER_MAPPING_H

#include <stdbool.h>
#include <stddef.h>

#include "decoder/error.h"

typedef struct file_mapping {
    const unsigned char *data; /* page-aligned unless size is 0; NULL if nothing is mapped */
    size_t size;               /* bytes */
} file_mapping;

/* file_map(): maps a regular file. The file must not shrink while it is mapped: a read past the new
 * end raises SIGBUS. An empty file has size 0 and a pointer that is not NULL.
 *  returns  0; -1 with `error` filled: not found, no permission, not a regular file, or a file of
 *           another kind, such as a Git LFS pointer. */
int file_map(const char *path, file_mapping *mapping, decoder_error *error);

/* Unmaps the file and zeroes the struct. A zeroed mapping is allowed. */
void file_unmap(file_mapping *mapping);

/* Returns whether `path` can be opened for reading, for optional files of a model folder. */
bool file_exists(const char *path);

/* path_join(): allocates "folder/name", which the caller frees. Returns NULL if memory runs out. */
char *path_join(const char *folder, const char *name);

#endif /* DECODER_MAPPING_H */
