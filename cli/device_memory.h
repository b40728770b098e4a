/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of an NVIDIA GPU, for data in files that a CUDA device is to draw from. The driver is
 * loaded at run time; whatever it refuses ends the program (options.h).
 */
#ifndef GUMBEL_CLI_DEVICE_MEMORY_H
#define GUMBEL_CLI_DEVICE_MEMORY_H

#include <stddef.h>

/* Make the GPU of "cuda:N" the one that the calling thread's further calls here mean. */
void device_memory_use(const char *device);

/* Memory of `bytes`, or of one byte; release it with device_memory_free(). */
void *device_memory_make(size_t bytes);
void device_memory_free(void *memory);

/* A copy of host memory; NULL for NULL. */
void *device_memory_copy(const void *from, size_t bytes);

/* Wait for the default stream, then copy to host memory. */
void device_memory_fetch(void *to, const void *from, size_t bytes);

#endif
