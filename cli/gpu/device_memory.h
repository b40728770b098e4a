/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of an NVIDIA GPU, for the inputs of a CUDA device. Call device_driver_use() first; an
 * error of the driver ends the program (options.h).
 */
#ifndef GUMBEL_CLI_DEVICE_MEMORY_H
#define GUMBEL_CLI_DEVICE_MEMORY_H

#include <stddef.h>

#include "gumbel/gumbel.h"

/* Allocates `bytes`, at least one; release with device_memory_free(). */
void *device_memory_new(size_t bytes);
void device_memory_free(const void *memory);

/* Allocates a copy of host memory; NULL for NULL. */
void *device_memory_copy(const void *from, size_t bytes);

/* Copies host memory to `to`. */
void device_memory_upload(void *to, const void *from, size_t bytes);

/* Waits for the default stream, then copies to host memory. */
void device_memory_download(void *to, const void *from, size_t bytes);

/* Copies the data of a matrix; release them with device_memory_free(). */
gumbel_tensor device_memory_copy_tensor(gumbel_tensor tensor);

#endif
