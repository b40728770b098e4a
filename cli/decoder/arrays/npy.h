/* SPDX-License-Identifier: Apache-2.0
 *
 * NumPy's .npy files, versions 1.0 and 2.0: C order, little-endian, of dtype float32, float16,
 * int32, int64, uint16, uint32 or uint64. NumPy has no bfloat16; the caller may read uint16 as
 * its bits.
 */
#ifndef DECODER_NPY_H
#define DECODER_NPY_H

#include <stddef.h>

#include "decoder/error.h"
#include "decoder/files/tensor.h"

typedef struct npy npy;

/* npy_open(): map a file and check its header and its size.
 *  file     receives the open file, NULL on error. Release it with npy_close().
 *  returns  0; -1 with `error` filled. */
int npy_open(const char *path, npy **file, decoder_error *error);

/* npy_parse(): the same from memory. `bytes` (8-byte aligned, `size` of them) must outlive the
 * file; `name` stands for the path in messages. */
int npy_parse(const void *bytes, size_t size, const char *name, npy **file, decoder_error *error);

/* Unmap and free; its tensor ends with it. NULL is allowed. */
void npy_close(npy *file);

/* The array; valid until the file is closed. */
const tensor_view *npy_tensor(const npy *file);

/* npy_write(): write an array to what `path` names (decoder/output_file.h): a reader of a regular
 * file sees the old one or the whole new one. One at a time in a process.
 *  array    one of these dtypes; `bytes` as tensor_set_shape() sets it.
 *  returns  0; -1 with `error` filled and nothing left behind. */
int npy_write(const char *path, const tensor_view *array, decoder_error *error);

#endif /* DECODER_NPY_H */
