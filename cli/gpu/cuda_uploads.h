/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request points to and what a call fills, in the memory of an NVIDIA GPU for one call.
 * device_driver_use() comes first.
 */
#ifndef GUMBEL_CLI_CUDA_UPLOADS_H
#define GUMBEL_CLI_CUDA_UPLOADS_H

#include <stdint.h>

#include "gumbel/gumbel.h"

/* Copies of the transforms and the truncation of a sampling, with all that they point to. */
struct cuda_uploads {
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_history history;
};

/* Copy what `sampling` has for `batch` rows of `tokens` tokens, first_token and V together, and
 * point it to the copies, which are in `made`. Release them with cuda_uploads_free(). */
void cuda_uploads_put(struct cuda_uploads *made, gumbel_sampling *sampling, int64_t batch,
                      int64_t tokens);
void cuda_uploads_free(const struct cuda_uploads *made);

/* A row parameter of `width` elements of `size` bytes, in memory to release with
 * device_memory_free(); NULL for NULL. */
const void *cuda_uploads_rows(const void *data, int64_t stride, int64_t width, int64_t batch,
                              size_t size);

/* Lists of `batch` rows, and their end. */
gumbel_token_lists cuda_uploads_lists(const gumbel_token_lists *lists, int64_t batch);
void cuda_uploads_free_lists(const gumbel_token_lists *lists);

/* An output with GPU memory for every array of `host`; and those arrays, once the default stream
 * has passed, fetched into `host` and released. */
gumbel_output cuda_output_make(const gumbel_output *host, int64_t batch, int64_t samples);
void cuda_output_fetch(const gumbel_output *host, const gumbel_output *there, int64_t batch,
                       int64_t samples);

#endif
