/* SPDX-License-Identifier: Apache-2.0
 *
 * The seed of a command without --seed.
 */
#ifndef GUMBEL_CLI_SEED_H
#define GUMBEL_CLI_SEED_H

#include <jansson.h>
#include <stdint.h>

/* 64 random bits of the operating system; fail() on an error. */
uint64_t draw_seed(void);

/* Prints one line on stderr: the seed, and that --seed with it "repeats `what`". */
void print_seed(uint64_t seed, const char *what);

/* The seed as a string of decimal digits: readers of JSON round numbers above 2^53. */
json_t *seed_to_json(uint64_t seed);

#endif
