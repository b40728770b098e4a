/* SPDX-License-Identifier: Apache-2.0
 *
 * What this machine can do at best: the two ceilings that `gumbel bench` measures against.
 */
#ifndef GUMBEL_CLI_MACHINE_PEAKS_H
#define GUMBEL_CLI_MACHINE_PEAKS_H

#include <stddef.h>
#include <stdint.h>

#include "gumbel/gumbel.h"

/* Bytes a second that `threads` threads read together out of buffer[0..bytes), each its own part:
 * the best of several passes over the whole, with one and with four streams a thread. Take a buffer
 * far larger than the caches. `buffer` is aligned to 64 bytes and filled. */
double measure_read_bandwidth(const void *buffer, size_t bytes, int32_t threads, gumbel_isa isa);

/* Seconds of one pass over the same bytes, the streams a thread that measure_read_bandwidth() found
 * best: a read floor to interleave with other measurements. */
double time_read_pass(const void *buffer, size_t bytes, int32_t threads, gumbel_isa isa);

/* float32 operations a second (a fused multiply-add is two) of `threads` threads with the widest
 * registers that `isa` has, operands in registers. GUMBEL_ISA_REFERENCE measures what plain C gets:
 * 128-bit vectors. */
double measure_float_peak(int32_t threads, gumbel_isa isa);

#endif
