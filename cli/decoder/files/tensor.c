/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/files/tensor.h"

#include <stdio.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensor files are little-endian and are used where they lie: so must the machine be"
#endif

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [TENSOR_BOOL] = {"BOOL", 1},       [TENSOR_U8] = {"U8", 1},
    [TENSOR_I8] = {"I8", 1},           [TENSOR_F8_E4M3] = {"F8_E4M3", 1},
    [TENSOR_F8_E5M2] = {"F8_E5M2", 1}, [TENSOR_U16] = {"U16", 2},
    [TENSOR_I16] = {"I16", 2},         [TENSOR_F16] = {"F16", 2},
    [TENSOR_BF16] = {"BF16", 2},       [TENSOR_U32] = {"U32", 4},
    [TENSOR_I32] = {"I32", 4},         [TENSOR_F32] = {"F32", 4},
    [TENSOR_U64] = {"U64", 8},         [TENSOR_I64] = {"I64", 8},
    [TENSOR_F64] = {"F64", 8},
};

const char *tensor_dtype_name(tensor_dtype dtype) { return dtypes[dtype].name; }

bool tensor_dtype_from_name(const char *name, tensor_dtype *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = (tensor_dtype)i;
            return true;
        }
    }
    return false;
}

size_t tensor_element_size(tensor_dtype dtype) { return dtypes[dtype].size; }

bool tensor_set_shape(tensor_view *view, int rank, const int64_t *shape)
{
    if (rank < 0 || rank > TENSOR_MAX_RANK) {
        return false;
    }
    /* Zeros count as ones here, so that they hide no overflow of the other sizes. */
    int64_t bytes = (int64_t)tensor_element_size(view->dtype);
    bool empty = false;
    view->rank = rank;
    memset(view->shape, 0, sizeof view->shape);
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(bytes, shape[i] > 0 ? shape[i] : 1, &bytes)) {
            return false;
        }
        empty = empty || shape[i] == 0;
        view->shape[i] = shape[i];
    }
    view->bytes = empty ? 0 : (size_t)bytes;
    return (uint64_t)bytes <= SIZE_MAX;
}

bool tensor_as_matrix(const tensor_view *view, gumbel_tensor *matrix)
{
    gumbel_tensor result = {.data = view->data};
    switch (view->dtype) {
    case TENSOR_F32:
        result.dtype = GUMBEL_FLOAT32;
        break;
    case TENSOR_F16:
        result.dtype = GUMBEL_FLOAT16;
        break;
    case TENSOR_BF16:
        result.dtype = GUMBEL_BFLOAT16;
        break;
    default:
        return false;
    }
    if (view->rank != 1 && view->rank != 2) {
        return false;
    }
    result.rows = view->rank == 2 ? view->shape[0] : 1;
    result.cols = view->shape[view->rank - 1];
    *matrix = result;
    return true;
}

const char *tensor_shape_text(const tensor_view *view, char *text, size_t size)
{
    size_t length = 0;
    for (int i = 0; i <= view->rank && length < size; i++) {
        const char *before = i == 0 ? "[" : i < view->rank ? ", " : "]";
        if (i == view->rank) {
            snprintf(text + length, size - length, "%s", i == 0 ? "[]" : before);
            break;
        }
        length += (size_t)snprintf(text + length, size - length, "%s%lld", before,
                                   (long long)view->shape[i]);
    }
    return text;
}
