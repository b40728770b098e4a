/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies the arrays of a request to an NVIDIA GPU for one call, and its outputs back. Call
 * device_driver_use() first.
 */
#ifndef GUMBEL_CLI_CUDA_UPLOADS_H
#define GUMBEL_CLI_CUDA_UPLOADS_H

#include <stdint.h>

#include "gumbel/programs.h"

/* Copies of the transforms and the truncation of a sampling, and of all arrays in them. */
struct cuda_uploads {
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_programs programs; /* their rules stay in host memory */
    gumbel_history history;
};

/* Copies the transforms and truncation of `sampling` for `batch` rows of `tokens` (first_token + V)
 * tokens to the GPU, and makes `sampling` point to them. Release with cuda_uploads_free(). */
void cuda_uploads_copy(struct cuda_uploads *copies, gumbel_sampling *sampling, int64_t batch,
                       int64_t tokens);
void cuda_uploads_free(const struct cuda_uploads *copies);

/* Copies a row parameter of `width` elements of `size` bytes; release it with device_memory_free().
 * NULL for NULL. */
const void *cuda_uploads_rows(const void *data, int64_t stride, int64_t width, int64_t batch,
                              size_t size);

/* Copies lists of `batch` rows; releases them. */
gumbel_token_lists cuda_uploads_lists(const gumbel_token_lists *lists, int64_t batch);
void cuda_uploads_free_lists(const gumbel_token_lists *lists);

/* An output with GPU memory for every array of `host`. cuda_output_download() waits for the default
 * stream, copies the arrays into `host` and frees them. */
gumbel_output cuda_output_new(const gumbel_output *host, int64_t batch, int64_t samples);
void cuda_output_download(const gumbel_output *host, const gumbel_output *on_gpu, int64_t batch,
                          int64_t samples);

#endif
