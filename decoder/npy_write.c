/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "decoder/npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "decoder/npy_header.h"

static int write_all(int descriptor, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        ssize_t written = write(descriptor, at, size);
        if (written < 0 && errno != EINTR) {
            return -1;
        }
        if (written > 0) {
            at += written;
            size -= (size_t)written;
        }
    }
    return 0;
}

/* mkstemp() makes the file private; give it the mode that open() would have given. */
static int set_default_mode(int descriptor)
{
    mode_t mask = umask(0);
    umask(mask);
    return fchmod(descriptor, 0666 & ~mask);
}

static int fill(int descriptor, const char *header, size_t header_size, const tensor_view *array)
{
    int failed = set_default_mode(descriptor) != 0 ||
                 write_all(descriptor, header, header_size) != 0 ||
                 write_all(descriptor, array->data, array->bytes) != 0;
    int reason = errno;
    failed = close(descriptor) != 0 || failed;
    errno = reason;
    return failed ? -1 : 0;
}

int npy_write(const char *path, const tensor_view *array, decoder_error *error)
{
    char header[NPY_HEADER_MAX];
    size_t header_size = npy_header_write(array, header);
    if (header_size == 0) {
        return decoder_fail(error, path, "dtype", "%s has no npy spelling here",
                            tensor_dtype_name(array->dtype));
    }
    size_t length = strlen(path) + sizeof ".XXXXXX";
    char *temporary = malloc(length);
    if (!temporary) {
        return decoder_fail(error, path, NULL, "out of memory");
    }
    snprintf(temporary, length, "%s.XXXXXX", path);
    int result = 0;
    int descriptor = mkstemp(temporary);
    if (descriptor < 0) {
        result = decoder_fail(error, path, NULL, "cannot be written: %s", strerror(errno));
    } else if (fill(descriptor, header, header_size, array) != 0 || rename(temporary, path) != 0) {
        result = decoder_fail(error, path, NULL, "cannot be written: %s", strerror(errno));
        unlink(temporary);
    }
    free(temporary);
    return result;
}
