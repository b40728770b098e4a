/* SPDX-License-Identifier: Apache-2.0
 *
 * NumPy's .npy files, versions 1.0 and 2.0: C order, little-endian, of dtype float32, float16,
 * int32, int64, uint16, uint32 or uint64. NumPy has no bfloat16; the caller may read uint16 as
 * the bits of one.
 */
#ifndef DECODER_NPY_H
#define DECODER_NPY_H

#include <stddef.h>

#include "decoder/error.h"
#include "decoder/files/tensor.h"

typedef struct npy npy;

/* npy_open(): maps a file and validates its header and its size.
 *  file     receives the open file, NULL on error. Release it with npy_close().
 *  returns  0; -1 with `error` filled. */
int npy_open(const char *path, npy **file, decoder_error *error);

/* npy_parse(): npy_open() from memory. `bytes` (8-byte aligned, `size` of them) must outlive the
 * file; `name` replaces the path in messages. */
int npy_parse(const void *bytes, size_t size, const char *name, npy **file, decoder_error *error);

/* Unmaps and frees, with the tensor. NULL is allowed. */
void npy_close(npy *file);

/* The array; valid until the file is closed. */
const tensor_view *npy_tensor(const npy *file);

/* npy_write(): writes an array to `path` (decoder/output_file.h): a reader of a regular file sees
 * the old file or the complete new one. One call at a time in a process.
 *  array    one of these dtypes; `bytes` as set by tensor_set_shape().
 *  returns  0; -1 with `error` filled and no file written. */
int npy_write(const char *path, const tensor_view *array, decoder_error *error);

#endif /* DECODER_NPY_H */
