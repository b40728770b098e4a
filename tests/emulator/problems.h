/* SPDX-License-Identifier: Apache-2.0
 *
 * Random problems by number, and the programs that run them.
 */
#ifndef TESTS_EMULATOR_PROBLEMS_H
#define TESTS_EMULATOR_PROBLEMS_H

extern "C" {
#include "outcome.h"
}
#include "test_scale.h"

#include <stdio.h>
#include <stdlib.h>

/* true once in `count` times. */
static inline bool one_in(uint64_t *random, uint32_t count)
{
    return random_below(random, count) == 0;
}

/* Runs passes(i) for the problems of a command line, [FIRST [COUNT]]: by default `few` from 0 on,
 * or `many` at night. Prints the numbers of problems and failures; returns the latter.
 */
template <class F> int run_problems(int argc, char **argv, int few, int many, F passes)
{
    int first = argc > 1 ? atoi(argv[1]) : 0, failed = 0;
    int count = argc > 2 ? atoi(argv[2]) : is_nightly() ? many : few;
    for (int i = first; i < first + count; i++)
        failed += !passes(i);
    printf("%d problems, %d failed\n", count, failed);
    return failed;
}

/* run_problems() of passes(i, cpu), with a CPU device of one thread. */
template <class F> int run_cpu_problems(int argc, char **argv, int few, int many, F passes)
{
    gumbel_device *cpu = open_device((gumbel_isa)0, 1, 0);
    int failed = run_problems(argc, argv, few, many, [&](int i) { return passes(i, cpu); });
    gumbel_close(cpu);
    return failed;
}

/* Whether a call of the library failed; prints its error. */
static inline bool fails(gumbel_status status, const gumbel_error &error, const char *what)
{
    if (status != GUMBEL_OK)
        printf("%s: %s: %s\n", what, error.field, error.message);
    return status != GUMBEL_OK;
}

/* Sets a weight of one token to NaN, or a hidden element of one row. */
static inline void set_nan(problem *generated, bool token)
{
    const gumbel_tensor *t = token ? &generated->head.weight : &generated->head.hidden;
    void *data = token ? generated->weight : generated->hidden;
    dtype_store_nan(data, t->dtype, t->rows / 2 * (t->stride ? t->stride : t->cols) + 7);
}

#endif
