/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors that the user names as FILE or FILE:TENSOR, from safetensors and .npy files. Whatever is
 * wrong with one ends the program (options.h).
 */
#ifndef GUMBEL_CLI_TENSOR_FILE_H
#define GUMBEL_CLI_TENSOR_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "decoder/arrays/npy.h"
#include "decoder/files/safetensors.h"
#include "gumbel/gumbel.h"

/* An open file and the matrix in it, which is mapped, not read. Start from {0}. */
struct tensor_file {
    gumbel_tensor matrix; /* rank 1 is one row */
    safetensors *checkpoint;
    npy *array;
    char *from_stdin; /* the bytes of what stands on stdin */
};

/* Whether `name`, which may be NULL, is that of stdin: "-", or "-:TENSOR". */
bool reads_stdin(const char *name);

/* stat() the file that tensor_file_open() would open for `name`; fstat() for stdin. False if there
 * is none, and if `name` is NULL. */
bool tensor_file_stat(const char *name, struct stat *found);

/* Open `name`, the value of option `field`; "-" is stdin, a .npy or a safetensors file. A name with
 * a suffix :TENSOR picks that tensor of a safetensors file; without one the file must hold a single
 * tensor. A .npy file of dtype uint16 is read as the bits of bfloat16, which NumPy lacks. */
void tensor_file_open(struct tensor_file *file, const char *field, const char *name);

/* Unmap and clear; a zeroed one is allowed. */
void tensor_file_close(struct tensor_file *file);

/* Whether `name` is that of a .npy file. */
bool names_npy(const char *name);

/* Open a .npy file of int32 with 1 or 2 axes, whose last is `cols` long; < 0: any length. With two
 * axes there must be `rows` rows. */
npy *open_int32_rows(const char *field, const char *path, int64_t rows, int64_t cols);

/* A row parameter, floats in [low, high]. A number on the command line serves all rows; a .npy file
 * has one value for each. `text` NULL gives data NULL, the library's default. Release `data` with
 * free(). */
gumbel_row_f32 read_row_floats(const char *field, const char *text, float low, float high,
                               int64_t rows);
gumbel_row_i32 read_row_int32s(const char *field, const char *text, int64_t rows);

/* The same of numbers below 2^32. */
gumbel_row_u32 read_row_uint32s(const char *field, const char *text, int64_t rows);

/* The same of numbers below 2^64. */
gumbel_row_u64 read_row_uint64s(const char *field, const char *text, int64_t rows);

#endif
