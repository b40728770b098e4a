/* SPDX-License-Identifier: Apache-2.0 */
#include "watermark_key.h"

#include <stdlib.h>
#include <string.h>

#include "failure.h"

void parse_watermark_key(const char *field, const char *text, uint64_t key[2])
{
    enum { DIGITS = 32 };

    if (strlen(text) != DIGITS || strspn(text, "0123456789abcdefABCDEF") != DIGITS) {
        fail(field, "must be 32 hexadecimal digits, 16 secret bytes");
    }
    key[0] = key[1] = 0;
    for (int i = 0; i < DIGITS / 2; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};

        key[i / 8] |= (uint64_t)strtoul(digits, NULL, 16) << i % 8 * 8;
    }
}
