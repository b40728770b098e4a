/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "seed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "failure.h"

uint64_t draw_seed(void)
{
    uint64_t seed = 0;

    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) {
        fail("--seed", "the operating system returned no random bits (%s); pass a seed",
             strerror(errno));
    }
    return seed;
}

void print_seed(uint64_t seed, const char *what)
{
    fprintf(stderr, "seed %" PRIu64 "; --seed %" PRIu64 " repeats %s\n", seed, seed, what);
}

json_t *seed_to_json(uint64_t seed)
{
    char digits[24];

    snprintf(digits, sizeof digits, "%" PRIu64, seed);
    return json_string(digits);
}
