/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws on an NVIDIA GPU from a source in host memory.
 */
#ifndef GUMBEL_CLI_CUDA_SOURCE_H
#define GUMBEL_CLI_CUDA_SOURCE_H

#include "source.h"

/* source_sample() on a CUDA device, or source_sample_chunks() where `chunk` is not 0: everything is
 * copied there, and the results back. `name` is that of the device, "cuda:N". */
void cuda_source_sample(const struct source *source, gumbel_device *device, const char *name,
                        const gumbel_sampling *sampling, const gumbel_output *output,
                        int64_t chunk);

#endif
