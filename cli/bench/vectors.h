/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiler's vectors of floats, and targets with registers of their width. A function for a
 * target must run only on CPUs that have its feature.
 */
#ifndef CLI_VECTORS_H
#define CLI_VECTORS_H

typedef float floats16 __attribute__((vector_size(16)));
typedef float floats32 __attribute__((vector_size(32)));
typedef float floats64 __attribute__((vector_size(64)));

#if defined(__x86_64__)
#define TARGET_AVX2   __attribute__((target("avx2,fma")))
#define TARGET_AVX512 __attribute__((target("avx512f")))
#else
#define TARGET_AVX2
#define TARGET_AVX512
#endif

#endif
