/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "decoder/files/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "decoder/files/json_file.h"
#include "decoder/files/mapping.h"

/* The bound of the reference implementation. */
#define HEADER_MAX 100000000u
#define PREFIX     8u

typedef struct entry {
    const char *name; /* borrowed from the header document */
    uint64_t begin;   /* byte offset in the data section */
    tensor_view view;
} entry;

struct safetensors {
    char *path;
    file_mapping mapping;
    json_t *header;
    entry *entries; /* [count], sorted by name */
    size_t count;
};

static int compare_offsets(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->view.bytes > y->view.bytes) - (x->view.bytes < y->view.bytes);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

/* Reads "dtype" and "shape", and sets view.bytes. */
static int read_type(const json_place *place, tensor_view *view)
{
    const char *dtype;
    if (json_text(place, "dtype", true, &dtype) != 0) {
        return -1;
    }
    if (!tensor_dtype_from_name(dtype, &view->dtype)) {
        return json_fail(place, "dtype", "\"%.32s\" is not supported", dtype);
    }
    const json_t *shape = json_object_get(place->object, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > TENSOR_MAX_RANK) {
        return json_fail(place, "shape", "is not an array of at most %d sizes", TENSOR_MAX_RANK);
    }
    int64_t sizes[TENSOR_MAX_RANK] = {0};
    int rank = (int)json_array_size(shape);
    for (int i = 0; i < rank; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return json_fail(place, "shape", "entry %d is not a size", i);
        }
        sizes[i] = json_integer_value(size);
    }
    if (!tensor_set_shape(view, rank, sizes)) {
        return json_fail(place, "shape", "the number of bytes overflows");
    }
    return 0;
}

/* Reads "data_offsets" and checks them against the type and the data section. */
static int read_offsets(const json_place *place, const unsigned char *data, size_t data_size,
                        entry *tensor)
{
    const json_t *offsets = json_object_get(place->object, "data_offsets");
    const json_t *first = json_array_get(offsets, 0);
    const json_t *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last)) {
        return json_fail(place, "data_offsets", "is not a pair of integers");
    }
    int64_t begin = json_integer_value(first);
    int64_t end = json_integer_value(last);
    if (begin < 0 || end < begin || (uint64_t)end > data_size) {
        return json_fail(place, "data_offsets",
                         "[%lld, %lld] lies outside the %zu bytes of data; the file "
                         "may be incomplete",
                         (long long)begin, (long long)end, data_size);
    }
    if ((uint64_t)(end - begin) != tensor->view.bytes) {
        return json_fail(place, "data_offsets", "spans %lld bytes, dtype and shape need %zu",
                         (long long)(end - begin), tensor->view.bytes);
    }
    tensor->begin = (uint64_t)begin;
    tensor->view.data = data + begin;
    if ((uintptr_t)tensor->view.data % tensor_element_size(tensor->view.dtype) != 0) {
        return json_fail(place, "data_offsets", "the data is not aligned to its %zu-byte elements",
                         tensor_element_size(tensor->view.dtype));
    }
    return 0;
}

static int read_entries(safetensors *file, const unsigned char *data, size_t data_size,
                        decoder_error *error)
{
    file->entries = calloc(json_object_size(file->header) + 1, sizeof *file->entries);
    if (!file->entries) {
        return decoder_fail(error, file->path, NULL, "out of memory");
    }
    const char *name;
    json_t *value;
    json_object_foreach (file->header, name, value) {
        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        json_place place = {file->path, name, value, error};
        entry *tensor = &file->entries[file->count++];
        tensor->name = name;
        if (!json_is_object(value)) {
            return json_fail(&place, NULL, "is not a JSON object");
        }
        if (read_type(&place, &tensor->view) != 0 ||
            read_offsets(&place, data, data_size, tensor) != 0) {
            return -1;
        }
    }
    return 0;
}

/* In the order of offsets, each tensor must begin at the end of the previous one. */
static int check_cover(safetensors *file, size_t data_size, decoder_error *error)
{
    qsort(file->entries, file->count, sizeof *file->entries, compare_offsets);
    uint64_t end = 0;
    for (size_t i = 0; i < file->count; i++) {
        const entry *tensor = &file->entries[i];
        if (tensor->begin != end) {
            return decoder_fail(error, file->path, tensor->name,
                                "data_offsets: begins at %llu, the tensor before it ends at %llu",
                                (unsigned long long)tensor->begin, (unsigned long long)end);
        }
        end += tensor->view.bytes;
    }
    if (end != data_size) {
        return decoder_fail(error, file->path, "data", "%zu bytes, but the tensors take %llu",
                            data_size, (unsigned long long)end);
    }
    qsort(file->entries, file->count, sizeof *file->entries, compare_names);
    return 0;
}

static int read_file(safetensors *file, const unsigned char *bytes, size_t size,
                     decoder_error *error)
{
    if (size < PREFIX) {
        return decoder_fail(error, file->path, "header length",
                            "the file has %zu bytes, not even 8", size);
    }
    uint64_t length;
    memcpy(&length, bytes, PREFIX);
    if (length > HEADER_MAX || length > size - PREFIX) {
        return decoder_fail(error, file->path, "header length",
                            "is %llu, with %zu bytes left in the file and a limit of %u",
                            (unsigned long long)length, size - PREFIX, HEADER_MAX);
    }
    file->header =
        json_document(bytes + PREFIX, (size_t)length, JSON_NUMBERS_EXACT, file->path, error);
    if (!file->header) {
        return -1;
    }
    const unsigned char *data = bytes + PREFIX + length;
    size_t data_size = size - PREFIX - (size_t)length;
    if (read_entries(file, data, data_size, error) != 0) {
        return -1;
    }
    return check_cover(file, data_size, error);
}

int safetensors_parse(const void *bytes, size_t size, const char *name, safetensors **file,
                      decoder_error *error)
{
    *file = NULL;
    safetensors *result = calloc(1, sizeof *result);
    if (!result || !(result->path = strdup(name))) {
        free(result);
        return decoder_fail(error, name, NULL, "out of memory");
    }
    if (read_file(result, bytes, size, error) != 0) {
        safetensors_close(result);
        return -1;
    }
    *file = result;
    return 0;
}

int safetensors_open(const char *path, safetensors **file, decoder_error *error)
{
    *file = NULL;
    file_mapping mapping;
    if (file_map(path, &mapping, error) != 0) {
        return -1;
    }
    if (safetensors_parse(mapping.data, mapping.size, path, file, error) != 0) {
        file_unmap(&mapping);
        return -1;
    }
    (*file)->mapping = mapping;
    return 0;
}

void safetensors_close(safetensors *file)
{
    if (file) {
        free(file->entries);
        json_decref(file->header);
        file_unmap(&file->mapping);
        free(file->path);
        free(file);
    }
}

const tensor_view *safetensors_find(const safetensors *file, const char *name)
{
    entry key = {.name = name};
    const entry *found = bsearch(&key, file->entries, file->count, sizeof key, compare_names);
    return found ? &found->view : NULL;
}

size_t safetensors_count(const safetensors *file) { return file->count; }

const tensor_view *safetensors_at(const safetensors *file, size_t index, const char **name)
{
    if (name) {
        *name = file->entries[index].name;
    }
    return &file->entries[index].view;
}

const char *safetensors_path(const safetensors *file) { return file->path; }
