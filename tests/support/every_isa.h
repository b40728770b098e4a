/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a group of cmocka tests once for each ISA of this machine; the state of each test is a
 * device with that ISA. Include after cmocka.h.
 */
#ifndef TESTS_EVERY_ISA_H
#define TESTS_EVERY_ISA_H

#include "fixtures.h"
#include "outcome.h"

static gumbel_isa isa_under_test;

/* Several threads and small tiles give many boundaries. */
static int open_under_test(void **state)
{
    *state = open_device(isa_under_test, 3, 128);
    return 0;
}

/* Sets `failures` to the number of failed tests. `tests` must be an array, not a pointer. */
#define RUN_ON_EVERY_ISA(tests, failures)                                                          \
    do {                                                                                           \
        gumbel_isa isas[4];                                                                        \
        int count = list_isas(isas);                                                               \
        (failures) = 0;                                                                            \
        for (int i = 0; i < count; i++) {                                                          \
            isa_under_test = isas[i];                                                              \
            (failures) += cmocka_run_group_tests_name(gumbel_isa_name(isas[i]), tests,             \
                                                      open_under_test, close_device);              \
        }                                                                                          \
    } while (0)

#endif
