/* SPDX-License-Identifier: Apache-2.0
 *
 * The seed of a command's draws where the command line gives none.
 */
#ifndef GUMBEL_CLI_SEED_H
#define GUMBEL_CLI_SEED_H

#include <jansson.h>
#include <stdint.h>

/* 64 random bits from the operating system; fail()s if it has none. */
uint64_t draw_seed(void);

/* One line on stderr: the seed, and that --seed with it "repeats `what`". */
void print_seed(uint64_t seed, const char *what);

/* The seed in decimal digits, as a string: readers of JSON round numbers above 2^53. */
json_t *seed_to_json(uint64_t seed);

#endif
