/* SPDX-License-Identifier: Apache-2.0
 *
 * Which kernels this processor can run.
 */
#ifndef GUMBEL_CPU_DISPATCH_H
#define GUMBEL_CPU_DISPATCH_H

#include "cpu/cpu_kernels.h"
#include "cpu/cpu_screen_kernel.h"

/* The kernels of `isa`; NULL for AUTO, and where this build, processor or system lacks it. */
const cpu_kernels *cpu_kernels_of(gumbel_isa isa);

/* The fastest that is available. */
const cpu_kernels *cpu_kernels_best(void);

/* The processor's name for itself into text[size]; "" where unknown. */
void cpu_describe_processor(char *text, size_t size);

/* The integer product of screens that goes with an instruction set that runs here. */
const cpu_screen_sums *cpu_screen_sums_of(gumbel_isa isa);

#endif
