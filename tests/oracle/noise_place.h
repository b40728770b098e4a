/* SPDX-License-Identifier: Apache-2.0
 *
 * A place is an argument of the noise function: seed, position, sample, domain and token. For a
 * fixed key, Philox is a bijection of counters and can be inverted, so a place can be found for any
 * given random word. Tests then check the map from words to noise bit by bit through the public
 * gumbel_noise() alone.
 */
#ifndef TESTS_PLACE_H
#define TESTS_PLACE_H

#include "oracle.h"

typedef struct noise_place {
    uint64_t seed, position; /* the position is below 2^32 */
    uint32_t sample, domain;
    int64_t token;
} noise_place;

/* The counter that Philox4x32-10 maps to `out` with `key`. */
void invert_philox(const uint32_t out[4], const uint32_t key[2], uint32_t counter[4]);

/* A random place whose own word is `own`. Another token of the block has the least exponential, so
 * that this token's noise uses its own word. */
noise_place find_token_by_word(uint32_t own, uint64_t *state);

/* The place of the token that has the least exponential of a block of words r and r2. */
noise_place find_token_by_block_words(uint32_t r, uint32_t r2, uint64_t *state);

oracle_stream place_stream(const noise_place *at);
oracle_words place_words(const noise_place *at);

/* The library's noise at a place. */
float place_noise(const noise_place *at);

#endif
