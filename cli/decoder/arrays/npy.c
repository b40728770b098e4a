/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/arrays/npy.h"

#include <stdlib.h>
#include <string.h>

#include "decoder/files/mapping.h"
#include "decoder/arrays/npy_header.h"

struct npy {
    file_mapping mapping;
    tensor_view tensor;
};

/* Finds the header's text and the beginning of the data. */
static int find_header(const unsigned char *bytes, size_t size, const char *name, const char **text,
                       size_t *length, decoder_error *error)
{
    if (size < NPY_MAGIC_SIZE + 4 || memcmp(bytes, NPY_MAGIC, NPY_MAGIC_SIZE - 2) != 0) {
        return decoder_fail(error, name, "magic", "this is not an npy file");
    }
    unsigned major = bytes[6], minor = bytes[7];
    if ((major != 1 && major != 2) || minor != 0) {
        return decoder_fail(error, name, "version", "%u.%u is not supported, 1.0 and 2.0 are",
                            major, minor);
    }
    const unsigned char *field = bytes + NPY_MAGIC_SIZE;
    size_t width = major == 1 ? 2 : 4;
    uint32_t count = field[0] | (uint32_t)field[1] << 8;
    if (major == 2) {
        count |= (uint32_t)field[2] << 16 | (uint32_t)field[3] << 24;
    }
    if (count > size - NPY_MAGIC_SIZE - width) {
        return decoder_fail(error, name, "header length",
                            "is %u, with %zu bytes size_of_data in the file", (unsigned)count,
                            size - NPY_MAGIC_SIZE - width);
    }
    *text = (const char *)field + width;
    *length = count;
    return 0;
}

static int read_array(const unsigned char *bytes, size_t size, const char *name,
                      tensor_view *tensor, decoder_error *error)
{
    const char *text = NULL;
    size_t length = 0;
    if (find_header(bytes, size, name, &text, &length, error) != 0 ||
        npy_header_read(text, length, name, tensor, error) != 0) {
        return -1;
    }
    tensor->data = text + length;
    size_t size_of_data = size - (size_t)((const unsigned char *)tensor->data - bytes);
    if (size_of_data != tensor->bytes) {
        return decoder_fail(error, name, "shape",
                            "descr and shape need %zu bytes, the file has %zu", tensor->bytes,
                            size_of_data);
    }
    if ((uintptr_t)tensor->data % tensor_element_size(tensor->dtype) != 0) {
        return decoder_fail(error, name, "header length", "leaves the data unaligned");
    }
    return 0;
}

int npy_parse(const void *bytes, size_t size, const char *name, npy **file, decoder_error *error)
{
    *file = NULL;
    npy *result = calloc(1, sizeof *result);
    if (!result) {
        return decoder_fail(error, name, NULL, "out of memory");
    }
    if (read_array(bytes, size, name, &result->tensor, error) != 0) {
        free(result);
        return -1;
    }
    *file = result;
    return 0;
}

int npy_open(const char *path, npy **file, decoder_error *error)
{
    *file = NULL;
    file_mapping mapping;
    if (file_map(path, &mapping, error) != 0) {
        return -1;
    }
    if (npy_parse(mapping.data, mapping.size, path, file, error) != 0) {
        file_unmap(&mapping);
        return -1;
    }
    (*file)->mapping = mapping;
    return 0;
}

void npy_close(npy *file)
{
    if (file) {
        file_unmap(&file->mapping);
        free(file);
    }
}

const tensor_view *npy_tensor(const npy *file) { return &file->tensor; }
