/* SPDX-License-Identifier: Apache-2.0
 *
 * A temporary folder for each test, and files in it.
 */
#ifndef TEST_SCRATCH_FOLDER_H
#define TEST_SCRATCH_FOLDER_H

#include <stddef.h>

/* cmocka set-up and tear-down: *state is the path of a new, empty folder, which the tear-down
 * removes. */
int scratch_set_up(void **state);
int scratch_tear_down(void **state);

/* Returns folder/name in static storage; the last eight results stay valid. */
const char *scratch_path(const char *folder, const char *name);

/* Writes a file, or fails the test. Returns its path, as scratch_path() does. */
const char *scratch_write(const char *folder, const char *name, const void *bytes, size_t size);

/* Write text into a file of the folder; copy a file into the folder. */
const char *scratch_write_text(const char *folder, const char *name, const char *text);
const char *scratch_copy(const char *folder, const char *name, const char *from);

#endif /* TEST_SCRATCH_FOLDER_H */
