/* SPDX-License-Identifier: Apache-2.0
 *
 * SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed pseudorandom function of messages of whole
 * 64-bit words.
 */
#ifndef GUMBEL_MATHS_SIPHASH_H
#define GUMBEL_MATHS_SIPHASH_H

#include "maths/elementary.h"

typedef struct gumbel_siphash {
    uint64_t v0, v1, v2, v3;
    uint64_t words; /* absorbed so far */
} gumbel_siphash;

GUMBEL_INLINE uint64_t gumbel_rotate_bits(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

GUMBEL_INLINE void gumbel_siphash_rounds(gumbel_siphash *s, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        s->v0 += s->v1;
        s->v2 += s->v3;
        s->v1 = gumbel_rotate_bits(s->v1, 13) ^ s->v0;
        s->v3 = gumbel_rotate_bits(s->v3, 16) ^ s->v2;
        s->v0 = gumbel_rotate_bits(s->v0, 32);
        s->v2 += s->v1;
        s->v0 += s->v3;
        s->v1 = gumbel_rotate_bits(s->v1, 17) ^ s->v2;
        s->v3 = gumbel_rotate_bits(s->v3, 21) ^ s->v0;
        s->v2 = gumbel_rotate_bits(s->v2, 32);
    }
}

GUMBEL_INLINE gumbel_siphash gumbel_siphash_begin(const uint64_t key[2])
{
    gumbel_siphash s;
    s.v0 = key[0] ^ UINT64_C(0x736f6d6570736575);
    s.v1 = key[1] ^ UINT64_C(0x646f72616e646f6d);
    s.v2 = key[0] ^ UINT64_C(0x6c7967656e657261);
    s.v3 = key[1] ^ UINT64_C(0x7465646279746573);
    s.words = 0;
    return s;
}

/* Absorbs a word: the next 8 bytes of the message, in little-endian order. */
GUMBEL_INLINE void gumbel_siphash_absorb(gumbel_siphash *s, uint64_t word)
{
    s->v3 ^= word;
    gumbel_siphash_rounds(s, 2);
    s->v0 ^= word;
    s->words++;
}

/* The hash. The last block has the length of the message in bytes, mod 256, in its highest byte. */
GUMBEL_INLINE uint64_t gumbel_siphash_end(gumbel_siphash *s)
{
    gumbel_siphash_absorb(s, s->words * 8 << 56);
    s->v2 ^= 0xff;
    gumbel_siphash_rounds(s, 4);
    return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

#endif
