/* SPDX-License-Identifier: Apache-2.0
 *
 * Large buffers and the random numbers that fill them.
 */
#ifndef GUMBEL_CLI_NUMBER_PAGES_H
#define GUMBEL_CLI_NUMBER_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include "gumbel/gumbel.h"

/* Allocates pages, huge ones if available; fail() on an error. */
void *map_pages(const char *what, size_t bytes);
void unmap_pages(void *pages, size_t bytes);

/* Bytes of [rows, cols] numbers, rounded up to 64 for fill_numbers(). */
size_t matrix_bytes(int64_t rows, int64_t cols, gumbel_dtype dtype);

/* The SplitMix64 finaliser: random word `index` of a stream. */
uint64_t random_word(uint64_t index);

/* Fills `bytes`, a multiple of 8, with random numbers of either sign and magnitudes in [2^exponent,
 * 2^(exponent + 1)), exponent in -14..15; `stream` is the seed. */
void fill_numbers(void *pages, size_t bytes, gumbel_dtype dtype, int exponent, uint64_t stream,
                  int32_t threads);

/* Fills numbers[0..count) with near-normal numbers, sums of four uniforms, of the given
 * deviation. */
void fill_normal(float *numbers, int64_t count, float deviation, uint64_t stream, int32_t threads);

#endif
