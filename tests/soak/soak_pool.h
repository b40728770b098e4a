/* SPDX-License-Identifier: Apache-2.0
 *
 * A few GB of random numbers in device memory, generated once. Weights, hidden states and logits
 * are ranges of them, so that a new problem costs only the choice of its offsets.
 */
#ifndef TESTS_SOAK_POOL_H
#define TESTS_SOAK_POOL_H

#include "inputs.h"

/* Kinds of numbers. Products of POOL_QUARTERS with either of the first two kinds are exact in any
 * order of summation, also with a POOL_BIAS. */
typedef enum pool_kind {
    POOL_QUARTERS,   /* multiples of 1/4 from -1 to 1; as weights for D <= 512 */
    POOL_SIXTEENTHS, /* multiples of 1/16 from -1/4 to 1/4; as weights for any D <= 8192 */
    POOL_BIAS,       /* multiples of 2^-12 from -2 to 2, which only a float32 holds */
    POOL_NORMAL,     /* standard deviation 1 */
    POOL_NORMAL_4,   /* standard deviation 1/4 */
    POOL_NORMAL_16,  /* standard deviation 1/16 */
    POOL_LOGITS,     /* standard deviation 3 */
    POOL_PEAKED,     /* a few numbers far above the others, and some -inf */
    POOL_KINDS,
} pool_kind;

/* Maximum bytes of a range. */
#define POOL_PIECE_MAX ((size_t)256 << 20)

void pool_open(void);
void pool_close(void);

/* A range of the pool at a random offset, a multiple of `alignment` bytes. Callers must neither
 * free it nor write to it. */
const void *pool_piece(pool_kind kind, gumbel_dtype dtype, size_t bytes, size_t alignment,
                       uint64_t *random);

#endif
