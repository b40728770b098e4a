/* SPDX-License-Identifier: Apache-2.0
 *
 * Strings that end a text. A string may span tokens; it is found in the text, byte by byte.
 */
#ifndef GUMBEL_CLI_STOP_TEXT_H
#define GUMBEL_CLI_STOP_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "arguments.h"

/* Find the first place at which a stop string begins. No string may be empty.
 *  known    text[0..known) was searched before, and holds no stop string
 *  at       receives where it begins
 *  returns  the string; of several that begin there, the first of the list. NULL: there is none. */
const char *find_stop_text(const struct text_list *stops, const char *text, size_t size,
                           size_t known, size_t *at);

/* Bytes at the end of a text without stop strings that may be the beginning of one. */
size_t count_held_bytes(const struct text_list *stops, const char *text, size_t size);

#endif
