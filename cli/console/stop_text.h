/* SPDX-License-Identifier: Apache-2.0
 *
 * Strings that end a text. They are compared with its bytes, so a string may span tokens.
 */
#ifndef GUMBEL_CLI_STOP_TEXT_H
#define GUMBEL_CLI_STOP_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "arguments.h"

/* Finds the first occurrence of a stop string. No string may be empty.
 *  known    text[0..known) holds no stop string
 *  at       receives the offset where it begins
 *  returns  the string, the first of the list if several begin there; NULL: none. */
const char *find_stop_text(const struct text_list *stops, const char *text, size_t size,
                           size_t known, size_t *at);

/* Number of bytes at the end of a text that may be the beginning of a stop string. */
size_t count_held_bytes(const struct text_list *stops, const char *text, size_t size);

#endif
