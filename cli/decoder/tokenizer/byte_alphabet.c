/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/tokenizer/byte_alphabet.h"

#include <stdint.h>

/* The byte of a character; -1 if it is not in the alphabet. */
static int find_byte(uint32_t character)
{
    if ((character >= 0x21 && character <= 0x7e) || (character >= 0xa1 && character <= 0xac) ||
        (character >= 0xae && character <= 0xff)) {
        return (int)character;
    }
    uint32_t order = character - 0x100;
    if (order <= 0x20) {
        return (int)order; /* 0x00..0x20 */
    }
    if (order <= 0x42) {
        return (int)(order - 0x21 + 0x7f); /* 0x7F..0xA0 */
    }
    return order == 0x43 ? 0xad : -1;
}

bool alphabet_to_bytes(const char *spelling, size_t size, unsigned char *out, size_t *written)
{
    const unsigned char *at = (const unsigned char *)spelling;
    const unsigned char *end = at + size;
    size_t count = 0;
    while (at < end) {
        uint32_t character = *at++;
        if (character >= 0x80) {
            /* Every character of the alphabet has at most two bytes. */
            if (character >= 0xe0 || at == end) {
                return false;
            }
            character = (character & 0x1f) << 6 | (*at++ & 0x3f);
        }
        int byte = find_byte(character);
        if (byte < 0) {
            return false;
        }
        out[count++] = (unsigned char)byte;
    }
    *written = count;
    return true;
}
