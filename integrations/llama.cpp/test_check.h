/* SPDX-License-Identifier: Apache-2.0
 *
 * Counted checks of a test program; failures are printed, with a format for their values.
 */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <stdio.h>

static int failures, checks;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        checks++;                                                                                  \
        if (!(condition)) {                                                                        \
            failures++;                                                                            \
            printf("%s:%d: %s: ", __func__, __LINE__, #condition);                                 \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

/* Prints the counts; returns the exit status of the program. */
static inline int end_checks(void)
{
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}

#endif
