/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws on an NVIDIA GPU from a source in host memory.
 */
#ifndef GUMBEL_CLI_CUDA_SOURCE_H
#define GUMBEL_CLI_CUDA_SOURCE_H

#include "source.h"

/* source_sample_chunks() on a CUDA device: everything is copied there, `chunk` vocabulary rows at a
 * time (0: all), and the results back. `name` is that of the device, "cuda:N". */
void cuda_source_sample(const struct source *source, gumbel_device *device, const char *name,
                        const gumbel_sampling *sampling, const gumbel_output *output,
                        int64_t chunk);

#endif
