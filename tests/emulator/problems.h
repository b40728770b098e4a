/* SPDX-License-Identifier: Apache-2.0
 *
 * Random problems by number, and the programs that run them.
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

/* Runs passes(i) for the problems of a command line, [FIRST [COUNT]]: by default `few` from 0 on,
 * or `many` with GUMBEL_NIGHTLY=1. Prints the numbers of problems and failures; returns the latter.
 */
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
