/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the memory of an NVIDIA GPU, and nothing else. device_driver_use() comes first.
 */
#ifndef GUMBEL_CLI_DEVICE_READER_H
#define GUMBEL_CLI_DEVICE_READER_H

#include <stddef.h>

struct device_reader {
    void *function;
    void *never; /* 16 bytes that the kernel would write to if it ever wrote */
    unsigned multiprocessors;
    unsigned blocks, threads; /* a grid: at first any, then the fastest that was found */
};

/* A reader on the GPU of this handle; its kernel is compiled by the driver. */
struct device_reader device_reader_new(int device);

/* Queue one pass over bytes, a multiple of 16, at `from`, aligned to 16. */
void device_reader_queue(const struct device_reader *reader, const void *from, size_t bytes,
                         void *stream);

/* Bytes a second, the best of several grids over the same bytes; take far more than the caches. */
double device_reader_measure(struct device_reader *reader, const void *from, size_t bytes);

#endif
