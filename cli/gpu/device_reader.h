/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the memory of an NVIDIA GPU, to measure its bandwidth. Call device_driver_use() first.
 */
#ifndef GUMBEL_CLI_DEVICE_READER_H
#define GUMBEL_CLI_DEVICE_READER_H

#include <stddef.h>

struct device_reader {
    void *function;
    void *never; /* 16 bytes, the target of the store that is never reached */
    unsigned multiprocessors;
    unsigned blocks, threads; /* the grid: the fastest found, once measured */
};

/* A reader on the GPU of this handle; the driver compiles its kernel. */
struct device_reader device_reader_new(int device);

/* Queues one pass over `bytes`, a multiple of 16, at `from`, aligned to 16. */
void device_reader_queue(const struct device_reader *reader, const void *from, size_t bytes,
                         void *stream);

/* Bytes a second, the best of several grids; `bytes` should be far larger than the caches. */
double device_reader_measure(struct device_reader *reader, const void *from, size_t bytes);

#endif
