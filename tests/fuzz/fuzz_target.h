/* SPDX-License-Identifier: Apache-2.0
 *
 * The entry point that libFuzzer calls, and a check that stays in every build.
 */
#ifndef TEST_FUZZ_TARGET_H
#define TEST_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Runs one input; must return 0 and free all memory. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the program if a parser breaks a guarantee. */
#define PROMISE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* An error message is one line that names the file, "F". */
#define PROMISE_MESSAGE(error)                                                                     \
    PROMISE(strncmp((error).message, "F: ", 3) == 0 && !strchr((error).message, '\n'))

#endif /* TEST_FUZZ_TARGET_H */
