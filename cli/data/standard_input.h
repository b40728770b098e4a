/* SPDX-License-Identifier: Apache-2.0
 *
 * All of stdin in memory.
 */
#ifndef GUMBEL_CLI_STANDARD_INPUT_H
#define GUMBEL_CLI_STANDARD_INPUT_H

#include <stddef.h>

/* All of stdin, ended by a NUL that does not count; release it with free(). On a terminal a line on
 * stderr says that `what` is read, and how it ends. fail()s with `field` if stdin cannot be read,
 * holds more than `most` bytes, or was read before by another option. */
char *read_standard_input(const char *field, const char *what, size_t most, size_t *size);

#endif
