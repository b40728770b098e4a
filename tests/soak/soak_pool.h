/* SPDX-License-Identifier: Apache-2.0
 *
 * Some GB of random numbers in device memory, made once, of which weights, hidden states and logits
 * are pieces: a problem then costs no more than a choice of where it begins.
 */
#ifndef TESTS_SOAK_POOL_H
#define TESTS_SOAK_POOL_H

#include "inputs.h"

/* Kinds of numbers. Products of POOL_QUARTERS with either of the first two kinds are exact in any
 * order of summation, also with a POOL_BIAS. */
typedef enum pool_kind {
    POOL_QUARTERS,   /* multiples of 1/4 from -1 to 1; as weights for D <= 512 */
    POOL_SIXTEENTHS, /* a quarter of those; as weights for any D <= 8192 */
    POOL_BIAS,       /* multiples of 2^-12 from -2 to 2, which only a float32 holds */
    POOL_NORMAL,     /* deviation 1 */
    POOL_NORMAL_4,   /* a quarter of it */
    POOL_NORMAL_16,  /* a sixteenth */
    POOL_LOGITS,     /* deviation 3 */
    POOL_PEAKED,     /* a few far above the rest, and some -inf */
    POOL_KINDS,
} pool_kind;

/* Bytes that a piece may have at most. */
#define POOL_PIECE_MOST ((size_t)256 << 20)

void pool_open(void);
void pool_close(void);

/* A piece of device memory at a random place, a multiple of `alignment` bytes; nothing to free, and
 * not to be written to. */
const void *pool_piece(pool_kind kind, gumbel_dtype dtype, size_t bytes, size_t alignment,
                       uint64_t *random);

#endif
