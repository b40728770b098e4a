/* SPDX-License-Identifier: Apache-2.0
 *
 * Selects kernels by instruction set, among those that this build and processor support.
 */
#ifndef GUMBEL_CPU_DISPATCH_H
#define GUMBEL_CPU_DISPATCH_H

#include "cpu/cpu_kernels.h"
#include "cpu/cpu_screen_kernel.h"

/* The kernels of `isa`; NULL for AUTO, or if this build, processor or system lacks them. */
const cpu_kernels *cpu_find_kernels(gumbel_isa isa);

/* The fastest available kernels. */
const cpu_kernels *cpu_find_fastest_kernels(void);

/* Writes the brand name of the processor to text[size]; "" if unknown. */
void cpu_describe_processor(char *text, size_t size);

/* The fastest integer product of screens for `isa`, which must be available. */
const cpu_screen_kernel *cpu_find_screen_kernel(gumbel_isa isa);

/* The fastest integer product of screens of nibbles. */
const cpu_screen_kernel *cpu_find_nibble_kernel(gumbel_isa isa);

#endif
