/* SPDX-License-Identifier: Apache-2.0
 *
 * Large buffers and the random numbers that fill them.
 */
#ifndef GUMBEL_CLI_NUMBER_PAGES_H
#define GUMBEL_CLI_NUMBER_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include "gumbel/gumbel.h"

/* Pages for large buffers, huge where the system gives them; fail() where there are none. */
void *map_pages(const char *what, size_t bytes);
void unmap_pages(void *pages, size_t bytes);

/* Bytes of [rows, cols] numbers, rounded up to whole 64-byte lines, which fill_numbers() takes. */
size_t matrix_bytes(int64_t rows, int64_t cols, gumbel_dtype dtype);

/* The SplitMix64 finaliser: word `index` of a stream of random words, in any order. */
uint64_t random_word(uint64_t index);

/* Fill bytes at `pages`, a multiple of 8, with random numbers of either sign with magnitudes in
 * [2^exponent, 2^(exponent + 1)), exponent in -14..15; equal for equal `stream`s. */
void fill_numbers(void *pages, size_t bytes, gumbel_dtype dtype, int exponent, uint64_t stream,
                  int32_t threads);

/* Fill numbers[0..count) with near-normal ones, sums of four uniforms, of the given deviation. */
void fill_normal(float *numbers, int64_t count, float deviation, uint64_t stream, int32_t threads);

#endif
