/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads safetensors files: an 8-byte length, a JSON header, the bytes of all tensors.
 */
#ifndef DECODER_SAFETENSORS_H
#define DECODER_SAFETENSORS_H

#include <stddef.h>

#include "decoder/error.h"
#include "decoder/files/tensor.h"

/* An open file, immutable: any thread may read it. */
typedef struct safetensors safetensors;

/* safetensors_open(): maps a file and validates its header: lengths, names, dtypes, shapes, and
 * that the tensors cover the data without gap or overlap, aligned to their element size. The data
 * are not read.
 *  file     receives the open file, NULL on error. Release it with safetensors_close().
 *  returns  0; -1 with `error` filled. */
int safetensors_open(const char *path, safetensors **file, decoder_error *error);

/* safetensors_parse(): safetensors_open() from memory. `bytes` (8-byte aligned, `size` of them)
 * must outlive the file; `name` replaces the path in messages and is copied. */
int safetensors_parse(const void *bytes, size_t size, const char *name, safetensors **file,
                      decoder_error *error);

/* Unmaps and frees; invalidates every view. NULL is allowed. */
void safetensors_close(safetensors *file);

/* The tensor called `name`, valid until the file is closed; NULL if the file has none. */
const tensor_view *safetensors_find(const safetensors *file, const char *name);

/* Number of tensors. */
size_t safetensors_count(const safetensors *file);

/* Tensor `index` < count in order of names; *name receives its name; `name` may be NULL. */
const tensor_view *safetensors_at(const safetensors *file, size_t index, const char **name);

/* The path of the file. */
const char *safetensors_path(const safetensors *file);

#endif /* DECODER_SAFETENSORS_H */
