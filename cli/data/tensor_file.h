/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors named FILE or FILE:TENSOR, from safetensors and .npy files. Every error ends the program
 * (options.h).
 */
#ifndef GUMBEL_CLI_TENSOR_FILE_H
#define GUMBEL_CLI_TENSOR_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "decoder/arrays/npy.h"
#include "decoder/files/safetensors.h"
#include "gumbel/gumbel.h"

/* An open file and its mapped matrix. Start from {0}. */
struct tensor_file {
    gumbel_tensor matrix; /* rank 1 is one row */
    safetensors *checkpoint;
    npy *array;
    char *from_stdin; /* the bytes of stdin, or NULL */
};

/* True if `name` is "-" or "-:TENSOR", which is stdin; NULL is allowed. */
bool reads_stdin(const char *name);

/* stat() of the file that tensor_file_open() would open for `name`; fstat() for stdin. False if
 * there is none, or `name` is NULL. */
bool tensor_file_stat(const char *name, struct stat *found);

/* Opens `name`, the value of option `field`; "-" is stdin, a .npy or a safetensors file. The suffix
 * :TENSOR selects a tensor of a safetensors file; without it the file must hold one tensor. A .npy
 * file of dtype uint16 holds the bits of bfloat16, which NumPy lacks. */
void tensor_file_open(struct tensor_file *file, const char *field, const char *name);

/* Unmaps and clears; a zeroed struct is allowed. */
void tensor_file_close(struct tensor_file *file);

/* True if `name` ends in .npy. */
bool names_npy(const char *name);

/* Opens a .npy file of int32 with 1 or 2 axes. The last has length `cols` (< 0: any length), the
 * first of two has length `rows`. */
npy *open_int32_rows(const char *field, const char *path, int64_t rows, int64_t cols);

/* Reads a row parameter in [low, high]: a number for all rows, or a .npy file of one value a row.
 * `text` NULL gives data NULL, the library's default. Release `data` with free(). */
gumbel_row_f32 read_row_floats(const char *field, const char *text, float low, float high,
                               int64_t rows);
gumbel_row_i32 read_row_int32s(const char *field, const char *text, int64_t rows);

/* Numbers below 2^32. */
gumbel_row_u32 read_row_uint32s(const char *field, const char *text, int64_t rows);

/* Numbers below 2^64. */
gumbel_row_u64 read_row_uint64s(const char *field, const char *text, int64_t rows);

#endif
