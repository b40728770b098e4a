/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of an .npy file: a Python dictionary literal with three known keys.
 */
#ifndef DECODER_NPY_HEADER_H
#define DECODER_NPY_HEADER_H

#include <stddef.h>

#include "decoder/error.h"
#include "decoder/files/tensor.h"

/* The magic string and the two version bytes that follow it. */
#define NPY_MAGIC      "\x93NUMPY\x01\x00"
#define NPY_MAGIC_SIZE 8
/* Upper bound of the headers written here, version 1.0 with magic and length. */
#define NPY_HEADER_MAX 320

/* npy_header_read(): reads dtype, shape and bytes of `view` from the dictionary's text.
 *  name     replaces the path in messages.
 *  returns  0; -1 with `error` filled. */
int npy_header_read(const char *text, size_t length, const char *name, tensor_view *view,
                    decoder_error *error);

/* npy_header_write(): writes magic, version 1.0, length and dictionary, padded to a multiple of 64.
 *  returns  the bytes written to `out`; 0 if .npy has no name for the dtype. */
size_t npy_header_write(const tensor_view *view, char out[NPY_HEADER_MAX]);

#endif /* DECODER_NPY_HEADER_H */
