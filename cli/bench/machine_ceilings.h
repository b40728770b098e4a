/* SPDX-License-Identifier: Apache-2.0
 *
 * The two ceilings that `gumbel bench` compares with: read bandwidth and multiply-adds a second.
 */
#ifndef GUMBEL_CLI_MACHINE_CEILINGS_H
#define GUMBEL_CLI_MACHINE_CEILINGS_H

#include <stddef.h>
#include <stdint.h>

#include "gumbel/gumbel.h"

/* Bytes a second that `threads` threads read together from buffer[0..bytes), each its own range:
 * the best of several passes, with one, two and four streams a thread. The buffer should be far
 * larger than the caches; it is aligned to 64 bytes and filled. */
double measure_read_bandwidth(const void *buffer, size_t bytes, int32_t threads, gumbel_isa isa);

/* Seconds of one pass over the buffer, with the number of streams that measure_read_bandwidth()
 * found best, to take turns with other measurements. */
double time_read_pass(const void *buffer, size_t bytes, int32_t threads, gumbel_isa isa);

/* float32 operations a second (a fused multiply-add is two) of `threads` threads with the widest
 * registers of `isa`, operands in registers; 128-bit vectors for GUMBEL_ISA_REFERENCE. */
double measure_flops(int32_t threads, gumbel_isa isa);

#endif
