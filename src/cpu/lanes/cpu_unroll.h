/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiler hints of the kernels.
 */
#ifndef GUMBEL_CPU_UNROLL_H
#define GUMBEL_CPU_UNROLL_H

/* Unrolls a loop of up to 16 iterations whose number is known after inlining. Arrays of vectors
 * stay in memory without it. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

#define INLINED     static inline __attribute__((always_inline))
#define NOT_INLINED static __attribute__((noinline))

#endif
