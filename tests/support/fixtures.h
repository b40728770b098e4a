/* SPDX-License-Identifier: Apache-2.0
 *
 * Set-up and teardown of cmocka groups whose state is a device.
 */
#ifndef TESTS_FIXTURES_H
#define TESTS_FIXTURES_H

int open_reference(void **state);   /* plain C on one thread */
int open_two_threads(void **state); /* the best instruction set on two threads */
int open_one_thread(void **state);  /* on one: for many draws, beside which other tests run */
int close_device(void **state);     /* after any of these */

#endif
