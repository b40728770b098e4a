/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws on an NVIDIA GPU from a source in host memory.
 */
#ifndef GUMBEL_CLI_CUDA_SOURCE_H
#define GUMBEL_CLI_CUDA_SOURCE_H

#include "source.h"

/* source_sample() on a CUDA device, or source_sample_chunks() if `chunk` is not 0: copies all
 * inputs to the GPU, and the results back. `name` is the device's, "cuda:N". */
void cuda_source_sample(const struct source *source, gumbel_device *device, const char *name,
                        const gumbel_sampling *sampling, const gumbel_output *output,
                        int64_t chunk);

#endif
