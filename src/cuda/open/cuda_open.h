/* SPDX-License-Identifier: Apache-2.0
 *
 * Entry to the CUDA backend, also in builds without CUDA.
 */
#ifndef GUMBEL_CUDA_OPEN_H
#define GUMBEL_CUDA_OPEN_H

#include "gumbel/gumbel.h"

/* Open the device that options->device names, "cuda:N". Options of the CPU must be zero. */
gumbel_status cuda_open(const gumbel_device_options *options, gumbel_device **device,
                        gumbel_error *error);

/* gumbel_cuda_architectures(): "" in a build without CUDA. */
const char *cuda_architectures(void);

/* gumbel_cuda_architecture(); `kernels` is not NULL. */
const char *cuda_find_architecture(const char *kernels, int32_t capability);

#endif
