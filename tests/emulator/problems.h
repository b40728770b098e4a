/* SPDX-License-Identifier: Apache-2.0
 *
 * Random problems by number, and the programs that run some of them.
 */
#ifndef TESTS_EMULATOR_PROBLEMS_H
#define TESTS_EMULATOR_PROBLEMS_H

extern "C" {
#include "inputs.h"
}

#include <stdio.h>
#include <stdlib.h>

/* true once in `count` times. */
static inline bool one_in(uint64_t *random, uint32_t count)
{
    return random_below(random, count) == 0;
}

/* Run passes(i) for the problems of a command line, [FIRST [COUNT]]: by default `few` from 0 on,
 * `many` with GUMBEL_NIGHTLY=1. Prints how many there were and failed; returns the latter. */
template <class F> int run_problems(int argc, char **argv, int few, int many, F passes)
{
    int first = argc > 1 ? atoi(argv[1]) : 0, failed = 0;
    int count = argc > 2 ? atoi(argv[2]) : getenv("GUMBEL_NIGHTLY") ? many : few;
    for (int i = first; i < first + count; i++)
        failed += !passes(i);
    printf("%d problems, %d failed\n", count, failed);
    return failed;
}

#endif
