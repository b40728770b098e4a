/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading safetensors files: an 8-byte length, a JSON header, the bytes of all tensors.
 */
#ifndef DECODER_SAFETENSORS_H
#define DECODER_SAFETENSORS_H

#include <stddef.h>

#include "decoder/error.h"
#include "decoder/files/tensor.h"

/* One open file. Read-only after opening: any thread may use it. */
typedef struct safetensors safetensors;

/* safetensors_open(): map a file and check its header in full: lengths against the file's size,
 * names, dtypes, shapes, and that the tensors cover the data without gap or overlap and are aligned
 * to their element size. The data itself is not read.
 *  file     receives the open file, NULL on error. Release it with safetensors_close().
 *  returns  0; -1 with `error` filled. */
int safetensors_open(const char *path, safetensors **file, decoder_error *error);

/* safetensors_parse(): the same from memory. `bytes` (8-byte aligned, `size` of them) must outlive
 * the file; `name` stands for the path in messages and is copied. */
int safetensors_parse(const void *bytes, size_t size, const char *name, safetensors **file,
                      decoder_error *error);

/* Unmap and free; every view of the file ends with it. NULL is allowed. */
void safetensors_close(safetensors *file);

/* The tensor called `name`, valid until the file is closed; NULL where the file has none. */
const tensor_view *safetensors_find(const safetensors *file, const char *name);

/* Number of tensors. */
size_t safetensors_count(const safetensors *file);

/* Tensor `index` < count in order of names; its name goes to *name where that is not NULL. */
const tensor_view *safetensors_at(const safetensors *file, size_t index, const char **name);

/* The path it was opened with. */
const char *safetensors_path(const safetensors *file);

#endif /* DECODER_SAFETENSORS_H */
