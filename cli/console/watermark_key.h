/* SPDX-License-Identifier: Apache-2.0
 *
 * Secret keys of watermarks on the command line.
 */
#ifndef GUMBEL_CLI_WATERMARK_KEY_H
#define GUMBEL_CLI_WATERMARK_KEY_H

#include <stdint.h>

/* Parses the 32 hexadecimal digits of 16 bytes into the words of a key; fail(field, ...)
 * otherwise, without printing the digits. */
void parse_watermark_key(const char *field, const char *text, uint64_t key[2]);

#endif
