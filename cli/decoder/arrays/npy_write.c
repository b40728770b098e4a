/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/arrays/npy.h"

#include <errno.h>
#include <string.h>

#include "decoder/arrays/npy_header.h"
#include "decoder/arrays/output_file.h"

int npy_write(const char *path, const tensor_view *array, decoder_error *error)
{
    char header[NPY_HEADER_MAX];
    size_t header_size = npy_header_write(array, header);
    if (header_size == 0) {
        return decoder_fail(error, path, "dtype", "%s has no npy spelling here",
                            tensor_dtype_name(array->dtype));
    }
    output_file file;
    if (output_open(path, &file, error) != 0) {
        return -1;
    }
    int result = 0;
    if (output_write(&file, header, header_size) != 0 ||
        output_write(&file, array->data, array->bytes) != 0) {
        result = -1;
        output_abandon(&file);
    } else {
        result = output_commit(&file);
    }
    return result == 0 ? 0
                       : decoder_fail(error, path, NULL, "cannot be written: %s", strerror(errno));
}
