/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of an NVIDIA GPU, for data that a CUDA device is to draw from. device_driver_use() comes
 * first; whatever the driver refuses ends the program (options.h).
 */
#ifndef GUMBEL_CLI_DEVICE_MEMORY_H
#define GUMBEL_CLI_DEVICE_MEMORY_H

#include <stddef.h>

#include "gumbel/gumbel.h"

/* Memory of `bytes`, or of one byte; release it with device_memory_free(). */
void *device_memory_make(size_t bytes);
void device_memory_free(const void *memory);

/* A copy of host memory; NULL for NULL. */
void *device_memory_copy(const void *from, size_t bytes);

/* Copy host memory into `to`. */
void device_memory_put(void *to, const void *from, size_t bytes);

/* Wait for the default stream, then copy to host memory. */
void device_memory_fetch(void *to, const void *from, size_t bytes);

/* The same matrix with a copy of its data, which device_memory_free() releases. */
gumbel_tensor device_memory_copy_tensor(gumbel_tensor tensor);

#endif
