/* SPDX-License-Identifier: Apache-2.0
 *
 * Set-up and tear-down of cmocka groups whose state is a device.
 */
#ifndef TESTS_FIXTURES_H
#define TESTS_FIXTURES_H

int open_reference(void **state);   /* plain C on one thread */
int open_two_threads(void **state); /* the default instruction set on two threads */
int close_device(void **state);     /* tear-down for all three */

/* The default instruction set on one thread: for long tests, beside which ctest runs others. */
int open_one_thread(void **state);

#endif
