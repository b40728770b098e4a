/* SPDX-License-Identifier: Apache-2.0
 *
 * Full unrolling, without which arrays of vectors stay in memory.
 */
#ifndef GUMBEL_CPU_UNROLL_H
#define GUMBEL_CPU_UNROLL_H

/* Before a loop of up to 16 rounds whose number the compiler knows after inlining. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

#endif
