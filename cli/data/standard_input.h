/* SPDX-License-Identifier: Apache-2.0
 *
 * All of stdin in memory.
 */
#ifndef GUMBEL_CLI_STANDARD_INPUT_H
#define GUMBEL_CLI_STANDARD_INPUT_H

#include <stddef.h>

/* All of stdin and a NUL that `size` excludes; release it with free(). On a terminal, a line on
 * stderr explains that `what` is read, and how to end it. fail() with `field` if stdin cannot be
 * read, holds more than `most` bytes, or was already read for another option. */
char *read_standard_input(const char *field, const char *what, size_t most, size_t *size);

#endif
