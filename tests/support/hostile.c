/* SPDX-License-Identifier: Apache-2.0 */
#include "hostile.h"

#include "inputs.h"

#include <stdatomic.h>
#include <string.h>

static const uint32_t words[] = {
    0xa7a7a7a7, /* as float -4.7e-15 */
    0xffffffff, /* NaN */
    0x7f7fffff, /* FLT_MAX */
    0xff7fffff, /* -FLT_MAX */
    0x7f800000, /* +inf */
    0x42c80000, /* 100 */
    0x00000000,
};
enum { WORDS = sizeof words / sizeof *words };

void hostile_fill(void *memory, size_t bytes)
{
    static _Atomic uint64_t fills;
    uint64_t state = atomic_fetch_add(&fills, 1);
    uint32_t choice = random_below(&state, WORDS + 1);
    unsigned char *to = memory;
    uint64_t word = choice < WORDS ? words[choice] * 0x100000001u : random_bits(&state);
    size_t at = 0;
    for (; bytes - at >= sizeof word; at += sizeof word) {
        memcpy(to + at, &word, sizeof word);
        word = choice < WORDS ? word : random_bits(&state);
    }
    memcpy(to + at, &word, bytes - at);
}
