/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tensor_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decoder/files/folder_hints.h"
#include "options.h"
#include "standard_input.h"

static bool ends_in(const char *text, const char *suffix)
{
    const size_t length = strlen(text);
    const size_t tail = strlen(suffix);

    return length >= tail && strcmp(text + length - tail, suffix) == 0;
}

bool reads_stdin(const char *name)
{
    return name && (strcmp(name, "-") == 0 || strncmp(name, "-:", 2) == 0);
}

bool names_npy(const char *name) { return ends_in(name, ".npy"); }

/* Splits FILE:TENSOR at the last colon, unless a file has the whole name. Both results are copies;
 * `tensor` is NULL without a colon. */
static void split_name(const char *field, const char *name, char **path, char **tensor)
{
    const char *colon = strrchr(name, ':');

    *tensor = NULL;
    if (!colon || (access(name, F_OK) == 0 && !reads_stdin(name))) {
        *path = strdup(name);
    } else {
        *path = strndup(name, (size_t)(colon - name));
        *tensor = strdup(colon + 1);
    }
    if (!*path || (colon && !*tensor && access(name, F_OK) != 0)) {
        fail(field, "not enough memory");
    }
}

bool tensor_file_stat(const char *name, struct stat *found)
{
    const char *colon = name ? strrchr(name, ':') : NULL;
    char *path = NULL;
    bool there = false;

    if (!name) {
        return false;
    }
    if (reads_stdin(name)) {
        return fstat(STDIN_FILENO, found) == 0;
    }
    if (stat(name, found) == 0) {
        return true;
    }
    path = colon ? strndup(name, (size_t)(colon - name)) : NULL;
    there = path && stat(path, found) == 0;
    free(path);
    return there;
}

static const tensor_view *pick_tensor(const char *field, const safetensors *checkpoint,
                                      const char *path, const char *tensor)
{
    const tensor_view *view = NULL;
    const char *first = NULL;

    if (tensor) {
        view = safetensors_find(checkpoint, tensor);
        if (!view) {
            fail(field, "%s: has no tensor '%s'", path, tensor);
        }
        return view;
    }
    if (safetensors_count(checkpoint) == 0) {
        fail(field, "%s: holds no tensor", path);
    }
    view = safetensors_at(checkpoint, 0, &first);
    if (safetensors_count(checkpoint) > 1) {
        fail(field, "%s: holds %zu tensors; name one, as in %s:%s", path,
             safetensors_count(checkpoint), path, first);
    }
    return view;
}

static npy *open_array(const char *field, const char *path)
{
    decoder_error error = {""};
    npy *array = NULL;

    if (npy_open(path, &array, &error) != 0) {
        fail(field, "%s", error.message);
    }
    return array;
}

/* Opens stdin: a .npy file by its first bytes, otherwise a safetensors file. */
static void open_stdin(struct tensor_file *file, const char *field)
{
    static const char magic[] = "\x93NUMPY";
    decoder_error error = {""};
    size_t size = 0;

    if (isatty(STDIN_FILENO)) {
        fail(field, "stdin is a terminal; pipe a .npy or a safetensors file into it");
    }
    file->from_stdin = read_standard_input(field, "a tensor", SIZE_MAX / 2, &size);
    const bool array =
        size >= sizeof magic - 1 && memcmp(file->from_stdin, magic, sizeof magic - 1) == 0;

    if (hint_check_bytes("stdin", (const unsigned char *)file->from_stdin, size, &error) != 0 ||
        (array ? npy_parse(file->from_stdin, size, "stdin", &file->array, &error)
               : safetensors_parse(file->from_stdin, size, "stdin", &file->checkpoint, &error)) !=
            0) {
        fail(field, "%s", error.message);
    }
}

static void open_path(struct tensor_file *file, const char *field, const char *path)
{
    decoder_error error = {""};

    if (names_npy(path)) {
        file->array = open_array(field, path);
    } else if (safetensors_open(path, &file->checkpoint, &error) != 0) {
        fail(field, "%s", error.message);
    }
}

void tensor_file_open(struct tensor_file *file, const char *field, const char *name)
{
    tensor_view view;
    char shape[128];
    char *path = NULL;
    char *tensor = NULL;

    *file = (struct tensor_file){0};
    split_name(field, name, &path, &tensor);
    if (reads_stdin(name)) {
        open_stdin(file, field);
    } else {
        open_path(file, field, path);
    }
    if (file->array) {
        if (tensor) {
            fail(field, "%s: a .npy file holds one array, without names", path);
        }
        view = *npy_tensor(file->array);
        view.dtype = view.dtype == TENSOR_U16 ? TENSOR_BF16 : view.dtype;
    } else {
        view = *pick_tensor(field, file->checkpoint, path, tensor);
    }
    if (!tensor_as_matrix(&view, &file->matrix)) {
        fail(field, "%s: the tensor is %s %s; it must be F32, F16 or BF16 of rank 1 or 2", name,
             tensor_dtype_name(view.dtype), tensor_shape_text(&view, shape, sizeof shape));
    }
    free(path);
    free(tensor);
}

void tensor_file_close(struct tensor_file *file)
{
    safetensors_close(file->checkpoint);
    npy_close(file->array);
    free(file->from_stdin);
    *file = (struct tensor_file){0};
}

npy *open_int32_rows(const char *field, const char *path, int64_t rows, int64_t cols)
{
    npy *array = open_array(field, path);
    const tensor_view *view = npy_tensor(array);
    const int64_t found = view->rank > 0 ? view->shape[view->rank - 1] : 0;
    char shape[128];

    if (view->dtype != TENSOR_I32) {
        fail(field, "%s: the dtype is %s; it must be int32", path, tensor_dtype_name(view->dtype));
    }
    if (view->rank < 1 || view->rank > 2 || (view->rank == 2 && view->shape[0] != rows) ||
        (cols >= 0 && found != cols)) {
        char columns[24] = "N";

        if (cols >= 0) {
            snprintf(columns, sizeof columns, "%lld", (long long)cols);
        }
        fail(field, "%s: the shape is %s; it must be [%s], or [%lld, %s]", path,
             tensor_shape_text(view, shape, sizeof shape), columns, (long long)rows, columns);
    }
    return array;
}

/* ---------------------------------------------------------------- one value for each row ---- */

/* Opens a .npy file that must hold `rows` values. */
static npy *open_column(const char *field, const char *path, int64_t rows)
{
    npy *array = open_array(field, path);
    const tensor_view *view = npy_tensor(array);
    char shape[128];

    if (view->rank != 1 || view->shape[0] != rows) {
        fail(field, "%s: the shape is %s; there are %lld rows", path,
             tensor_shape_text(view, shape, sizeof shape), (long long)rows);
    }
    return array;
}

/* Element `row` of a column of integers, in [0, high]. */
static uint64_t read_integer_element(const char *field, const char *path, const tensor_view *view,
                                     int64_t row, uint64_t high)
{
    int64_t value = 0;
    uint64_t natural = 0;

    switch (view->dtype) {
    case TENSOR_I32:
        value = ((const int32_t *)view->data)[row];
        break;
    case TENSOR_I64:
        value = ((const int64_t *)view->data)[row];
        break;
    case TENSOR_U16:
        natural = ((const uint16_t *)view->data)[row];
        break;
    case TENSOR_U32:
        natural = ((const uint32_t *)view->data)[row];
        break;
    case TENSOR_U64:
        natural = ((const uint64_t *)view->data)[row];
        break;
    default:
        fail(field, "%s: the dtype is %s; it must be int32, int64, uint16, uint32 or uint64", path,
             tensor_dtype_name(view->dtype));
    }
    if (value < 0) {
        fail(field, "%s: value %lld of row %lld is not in [0, %llu]", path, (long long)value,
             (long long)row, (unsigned long long)high);
    }
    natural = value > 0 ? (uint64_t)value : natural;
    if (natural > high) {
        fail(field, "%s: value %llu of row %lld is not in [0, %llu]", path,
             (unsigned long long)natural, (long long)row, (unsigned long long)high);
    }
    return natural;
}

/* fail() if a value is outside [low, high] or NaN. */
static void check_floats(const char *field, const char *path, const float *values, int64_t rows,
                         float low, float high)
{
    char range[RANGE_BYTES];

    for (int64_t row = 0; row < rows; row++) {
        if (!(values[row] >= low && values[row] <= high)) {
            fail(field, "%s: value %g of row %lld is not in %s", path, (double)values[row],
                 (long long)row, format_range(low, high, range));
        }
    }
}

gumbel_row_f32 read_row_floats(const char *field, const char *text, float low, float high,
                               int64_t rows)
{
    npy *column = NULL;
    float *data = NULL;

    if (!text) {
        return (gumbel_row_f32){NULL, 0};
    }
    if (!names_npy(text)) {
        data = require_memory(field, 1, sizeof *data);
        data[0] = parse_float(field, text, low, high);
        return (gumbel_row_f32){data, GUMBEL_SAME};
    }
    column = open_column(field, text, rows);
    if (npy_tensor(column)->dtype != TENSOR_F32) {
        fail(field, "%s: the dtype is %s; it must be float32", text,
             tensor_dtype_name(npy_tensor(column)->dtype));
    }
    check_floats(field, text, npy_tensor(column)->data, rows, low, high);
    data = require_memory(field, rows, sizeof *data);
    memcpy(data, npy_tensor(column)->data, (size_t)rows * sizeof *data);
    npy_close(column);
    return (gumbel_row_f32){data, 0};
}

gumbel_row_i32 read_row_int32s(const char *field, const char *text, int64_t rows)
{
    npy *column = NULL;
    int32_t *data = NULL;

    if (!text) {
        return (gumbel_row_i32){NULL, 0};
    }
    if (!names_npy(text)) {
        data = require_memory(field, 1, sizeof *data);
        data[0] = (int32_t)parse_integer(field, text, 0, INT32_MAX);
        return (gumbel_row_i32){data, GUMBEL_SAME};
    }
    column = open_column(field, text, rows);
    data = require_memory(field, rows, sizeof *data);
    for (int64_t row = 0; row < rows; row++) {
        data[row] = (int32_t)read_integer_element(field, text, npy_tensor(column), row, INT32_MAX);
    }
    npy_close(column);
    return (gumbel_row_i32){data, 0};
}

gumbel_row_u32 read_row_uint32s(const char *field, const char *text, int64_t rows)
{
    npy *column = NULL;
    uint32_t *data = NULL;

    if (!text) {
        return (gumbel_row_u32){NULL, 0};
    }
    if (!names_npy(text)) {
        data = require_memory(field, 1, sizeof *data);
        data[0] = (uint32_t)parse_unsigned(field, text, UINT32_MAX);
        return (gumbel_row_u32){data, GUMBEL_SAME};
    }
    column = open_column(field, text, rows);
    data = require_memory(field, rows, sizeof *data);
    for (int64_t row = 0; row < rows; row++) {
        data[row] =
            (uint32_t)read_integer_element(field, text, npy_tensor(column), row, UINT32_MAX);
    }
    npy_close(column);
    return (gumbel_row_u32){data, 0};
}

gumbel_row_u64 read_row_uint64s(const char *field, const char *text, int64_t rows)
{
    npy *column = NULL;
    uint64_t *data = NULL;

    if (!text) {
        return (gumbel_row_u64){NULL, 0};
    }
    if (!names_npy(text)) {
        data = require_memory(field, 1, sizeof *data);
        data[0] = parse_unsigned(field, text, UINT64_MAX);
        return (gumbel_row_u64){data, GUMBEL_SAME};
    }
    column = open_column(field, text, rows);
    data = require_memory(field, rows, sizeof *data);
    for (int64_t row = 0; row < rows; row++) {
        data[row] = read_integer_element(field, text, npy_tensor(column), row, UINT64_MAX);
    }
    npy_close(column);
    return (gumbel_row_u64){data, 0};
}
