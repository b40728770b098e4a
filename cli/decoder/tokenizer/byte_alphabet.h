/* SPDX-License-Identifier: Apache-2.0
 *
 * The alphabet of byte-level BPE: tokenizer.json spells each of the 256 bytes as one printable
 * character. Bytes 0x21..0x7E, 0xA1..0xAC and 0xAE..0xFF are the characters of the same number; the
 * other 68 are, in order, U+0100..U+0143.
 */
#ifndef DECODER_BYTE_ALPHABET_H
#define DECODER_BYTE_ALPHABET_H

#include <stdbool.h>
#include <stddef.h>

/* alphabet_to_bytes(): converts a token's spelling to bytes.
 *  spelling  [size] valid UTF-8
 *  out       [size] room; the result is never longer than the spelling
 *  written   receives the number of bytes
 *  returns   false if a character is not in the alphabet. */
bool alphabet_to_bytes(const char *spelling, size_t size, unsigned char *out, size_t *written);

#endif /* DECODER_BYTE_ALPHABET_H */
