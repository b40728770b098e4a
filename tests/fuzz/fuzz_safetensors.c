/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses any bytes as a safetensors file: the result is an error, or every tensor is within the
 * file.
 */
#include <string.h>

#include "decoder/files/safetensors.h"
#include "fuzz_target.h"

static volatile uint8_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    safetensors *file;
    decoder_error error = {""};
    if (safetensors_parse(data, size, "F", &file, &error) != 0) {
        PROMISE(!file);
        PROMISE_MESSAGE(error);
        return 0;
    }
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const char *name;
        const tensor_view *view = safetensors_at(file, i, &name);
        const uint8_t *bytes = view->data;
        char shape[64];
        PROMISE(safetensors_find(file, name) == view);
        PROMISE(bytes >= data && view->bytes <= size && bytes + view->bytes <= data + size);
        PROMISE((uintptr_t)bytes % tensor_element_size(view->dtype) == 0);
        PROMISE(strlen(tensor_shape_text(view, shape, sizeof shape)) >= 2);
        /* The read lets a sanitizer detect a tensor outside the file. */
        sink = view->bytes > 0 ? bytes[0] ^ bytes[view->bytes - 1] : 0;
    }
    safetensors_close(file);
    return 0;
}
