/* SPDX-License-Identifier: Apache-2.0
 *
 * Random bytes from the operating system.
 */
#ifndef GUMBEL_CORE_ENTROPY_H
#define GUMBEL_CORE_ENTROPY_H

#include <stddef.h>

/* Fills `to` with bytes that nobody can predict. Returns 0 if the system provides none. Does not
 * wait, except for a system that is still booting. Re-entrant. */
int gumbel_read_entropy(void *to, size_t bytes);

#endif
