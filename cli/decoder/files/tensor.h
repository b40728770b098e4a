/* SPDX-License-Identifier: Apache-2.0
 *
 * A view of a dense tensor, as returned by the file readers.
 */
#ifndef DECODER_TENSOR_H
#define DECODER_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gumbel/gumbel.h"

#define TENSOR_MAX_RANK 8

typedef enum tensor_dtype {
    TENSOR_BOOL,
    TENSOR_U8,
    TENSOR_I8,
    TENSOR_F8_E4M3,
    TENSOR_F8_E5M2,
    TENSOR_U16,
    TENSOR_I16,
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_U32,
    TENSOR_I32,
    TENSOR_F32,
    TENSOR_U64,
    TENSOR_I64,
    TENSOR_F64,
} tensor_dtype;

/* Row-major (C order), little-endian, contiguous; data is aligned to its element size. */
typedef struct tensor_view {
    tensor_dtype dtype;
    int rank;                       /* 0 (one element) .. TENSOR_MAX_RANK */
    int64_t shape[TENSOR_MAX_RANK]; /* each >= 0; entries past `rank` are 0 */
    const void *data;
    size_t bytes;
} tensor_view;

/* The name in safetensors files: "F32", "BF16", ... */
const char *tensor_dtype_name(tensor_dtype dtype);

/* The dtype of a name of safetensors; false if unknown. */
bool tensor_dtype_from_name(const char *name, tensor_dtype *dtype);

/* Bytes of one element: 1, 2, 4 or 8. */
size_t tensor_element_size(tensor_dtype dtype);

/* tensor_set_shape(): sets rank, shape and `bytes`.
 *  shape    [rank], each >= 0
 *  returns  false if rank or a size is out of range or the bytes overflow 63 bits. */
bool tensor_set_shape(tensor_view *view, int rank, const int64_t *shape);

/* tensor_as_matrix(): converts to a gumbel_tensor. Rank 2 is [rows, cols]; rank 1 is one row.
 *  returns  false unless it is F32, F16 or BF16 of rank 1 or 2. */
bool tensor_as_matrix(const tensor_view *view, gumbel_tensor *matrix);

/* tensor_shape_text(): writes the shape as "[2, 3]", truncated to `size`; returns `text`. */
const char *tensor_shape_text(const tensor_view *view, char *text, size_t size);

#endif /* DECODER_TENSOR_H */
