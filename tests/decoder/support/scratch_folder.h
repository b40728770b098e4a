/* SPDX-License-Identifier: Apache-2.0
 *
 * A folder of its own for each test, gone afterwards; and files in it.
 */
#ifndef TEST_SCRATCH_FOLDER_H
#define TEST_SCRATCH_FOLDER_H

#include <stddef.h>

/* cmocka set-up and tear-down: *state is the path of a new, empty folder, removed in the end. */
int scratch_set_up(void **state);
int scratch_tear_down(void **state);

/* folder/name in static storage: the last eight results stay valid. */
const char *scratch_path(const char *folder, const char *name);

/* Write a file; fails the test where it cannot. Returns its path, as scratch_path() does. */
const char *scratch_write(const char *folder, const char *name, const void *bytes, size_t size);

/* Writes text into a file of the folder; copies a file into it. */
const char *scratch_write_text(const char *folder, const char *name, const char *text);
const char *scratch_copy(const char *folder, const char *name, const char *from);

#endif /* TEST_SCRATCH_FOLDER_H */
