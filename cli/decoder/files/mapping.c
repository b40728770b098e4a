/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "decoder/files/mapping.h"

#include "decoder/files/folder_hints.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* mapping.data of an empty file, which mmap() cannot map. */
static const unsigned char empty_file[1];

static int map_descriptor(int descriptor, const char *path, file_mapping *mapping,
                          decoder_error *error)
{
    struct stat status;
    if (fstat(descriptor, &status) != 0) {
        return decoder_fail(error, path, NULL, "%s", strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        return decoder_fail(error, path, NULL, "is not a regular file");
    }
    if ((uint64_t)status.st_size > SIZE_MAX) {
        return decoder_fail(error, path, NULL, "is too large to map");
    }
    mapping->size = (size_t)status.st_size;
    mapping->data = empty_file;
    if (mapping->size == 0) {
        return 0;
    }
    void *data = mmap(NULL, mapping->size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data == MAP_FAILED) {
        *mapping = (file_mapping){0};
        return decoder_fail(error, path, NULL, "cannot be mapped: %s", strerror(errno));
    }
    mapping->data = data;
    if (hint_check_bytes(path, data, mapping->size, error) != 0) {
        file_unmap(mapping);
        return -1;
    }
    return 0;
}

int file_map(const char *path, file_mapping *mapping, decoder_error *error)
{
    *mapping = (file_mapping){0};
    /* O_NONBLOCK: if the path is a FIFO, return an error instead of waiting for a writer. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        return decoder_fail(error, path, NULL, "%s", strerror(errno));
    }
    int result = map_descriptor(descriptor, path, mapping, error);
    close(descriptor);
    return result;
}

void file_unmap(file_mapping *mapping)
{
    if (mapping->size > 0) {
        munmap((void *)(uintptr_t)mapping->data, mapping->size);
    }
    *mapping = (file_mapping){0};
}

bool file_exists(const char *path) { return access(path, R_OK) == 0; }

char *path_join(const char *folder, const char *name)
{
    size_t length = strlen(folder) + strlen(name) + 2;
    char *path = malloc(length);
    if (path) {
        snprintf(path, length, "%s/%s", folder, name);
    }
    return path;
}
