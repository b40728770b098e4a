/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses any bytes as an .npy file: the result is an error, or an array that ends with the file and
 * can be written.
 */
#include <string.h>

#include "decoder/arrays/npy.h"
#include "decoder/arrays/npy_header.h"
#include "fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    npy *file;
    decoder_error error = {""};
    if (npy_parse(data, size, "F", &file, &error) != 0) {
        PROMISE(!file);
        PROMISE_MESSAGE(error);
        return 0;
    }
    const tensor_view *view = npy_tensor(file);
    char header[NPY_HEADER_MAX];
    tensor_view again;
    PROMISE((const uint8_t *)view->data + view->bytes == data + size);
    size_t written = npy_header_write(view, header);
    PROMISE(written > 0 && written % 64 == 0);
    PROMISE(npy_header_read(header + 10, written - 10, "F", &again, &error) == 0);
    PROMISE(again.bytes == view->bytes && again.rank == view->rank);
    npy_close(file);
    return 0;
}
