/* SPDX-License-Identifier: Apache-2.0
 *
 * The noise of a token: Philox4x32-10, the map from its word to a uniform, and the map from there
 * to a standard Gumbel variate (docs/maths.md, section 3). Scalar form; the vector forms follow it
 * operation by operation.
 */
#ifndef GUMBEL_MATHS_NOISE_H
#define GUMBEL_MATHS_NOISE_H

#include "maths/elementary.h"

#define GUMBEL_PHILOX_ROUNDS       10
#define GUMBEL_PHILOX_MULTIPLIER_0 0xD2511F53u
#define GUMBEL_PHILOX_MULTIPLIER_1 0xCD9E8D57u
#define GUMBEL_PHILOX_WEYL_0       0x9E3779B9u
#define GUMBEL_PHILOX_WEYL_1       0xBB67AE85u
/* Domain bit of the stream that holds the 32 further bits of small words. */
#define GUMBEL_TAIL_DOMAIN 0x80000000u
/* Words below this take further bits: 2^-24 of all. */
#define GUMBEL_TAIL_WORDS 256u
/* 1 - sqrt(1/2): from here on 1 - v is halved into the range of the logarithm's polynomial. */
#define GUMBEL_HALVING 0x1.2bec34p-2f

/* Where a draw stands in its streams: everything of key and counter but the token. */
typedef struct gumbel_stream {
    uint64_t seed;
    uint32_t position;
    uint32_t sample;
    uint32_t domain;
} gumbel_stream;

/* gumbel_row_seed(). */
GUMBEL_INLINE uint64_t gumbel_mix_seed(uint64_t seed, uint64_t row)
{
    uint64_t x = row * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return seed ^ x ^ (x >> 31);
}

/* The stream of a position, whose high half, where there is one, moves the seed. */
GUMBEL_INLINE gumbel_stream gumbel_stream_at(uint64_t seed, uint64_t position, uint32_t sample,
                                             uint32_t domain)
{
    uint64_t high = position >> 32;
    gumbel_stream stream;
    stream.seed = high ? gumbel_mix_seed(seed, ~high) : seed;
    stream.position = (uint32_t)position;
    stream.sample = sample;
    stream.domain = domain;
    return stream;
}

/* One block of Philox4x32 (Salmon et al., SC 2011), in place. */
GUMBEL_INLINE void gumbel_philox_block(uint32_t c[4], uint32_t key0, uint32_t key1, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        uint64_t p0 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_0 * c[0];
        uint64_t p1 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_1 * c[2];
        uint32_t c0 = (uint32_t)(p1 >> 32) ^ c[1] ^ key0;
        uint32_t c2 = (uint32_t)(p0 >> 32) ^ c[3] ^ key1;
        c[0] = c0;
        c[1] = (uint32_t)p1;
        c[2] = c2;
        c[3] = (uint32_t)p0;
        key0 += GUMBEL_PHILOX_WEYL_0;
        key1 += GUMBEL_PHILOX_WEYL_1;
    }
}

/* Words of the tokens 4 * block .. 4 * block + 3. `tail` is 0 or GUMBEL_TAIL_DOMAIN. */
GUMBEL_INLINE void gumbel_words(gumbel_stream stream, uint32_t block, uint32_t tail,
                                uint32_t out[4])
{
    out[0] = block;
    out[1] = stream.position;
    out[2] = stream.sample;
    out[3] = stream.domain | tail;
    gumbel_philox_block(out, (uint32_t)stream.seed, (uint32_t)(stream.seed >> 32),
                        GUMBEL_PHILOX_ROUNDS);
}

/* g = -log(E) of a standard exponential E. */
GUMBEL_INLINE float gumbel_of_exponential(float e) { return -gumbel_log(e); }

/* g for a word r >= GUMBEL_TAIL_WORDS. With x = r below 2^31, else ~r, v = (x + 0.5) * 2^-32 is in
 * (0, 0.5]; E = -log1p(-v) below, -log(v) above, so that neither end of u is ever rounded away. */
GUMBEL_INLINE float gumbel_of_word(uint32_t r)
{
    int high = r >= 0x80000000u;
    float v = fmaf((float)(int32_t)(high ? ~r : r), 0x1p-32f, 0x1p-33f);
    /* 1 - v as 2^exponent * (1 + f), f exact on both sides of the cut; or v itself. */
    int halve = v >= GUMBEL_HALVING;
    float exponent = halve ? -1.0f : 0.0f, f = halve ? fmaf(-2.0f, v, 1.0f) : -v;
    if (high)
        gumbel_log_split(v, &exponent, &f);
    return gumbel_of_exponential(-gumbel_log_assemble(exponent, f));
}

/* g for a word r < GUMBEL_TAIL_WORDS with its further bits r2: u = (r * 2^32 + r2 + 0.5) * 2^-64 is
 * below 2^-24, where E = -log1p(-u) is u to within half an ulp. */
GUMBEL_INLINE float gumbel_of_tail(uint32_t r, uint32_t r2)
{
    double u = ((double)r * 0x1p32 + (double)r2 + 0.5) * 0x1p-64;
    return gumbel_of_exponential((float)u);
}

/* g of one token. */
GUMBEL_INLINE float gumbel_of_token(gumbel_stream stream, uint32_t token)
{
    uint32_t words[4], more[4];
    gumbel_words(stream, token >> 2, 0, words);
    uint32_t r = words[token & 3];
    if (r >= GUMBEL_TAIL_WORDS)
        return gumbel_of_word(r);
    gumbel_words(stream, token >> 2, GUMBEL_TAIL_DOMAIN, more);
    return gumbel_of_tail(r, more[token & 3]);
}

/* g of the tokens [first, first + count), a Philox block for every four. */
GUMBEL_INLINE void gumbel_noise_fill(gumbel_stream stream, uint32_t first, int64_t count,
                                     float *out)
{
    uint32_t words[4];
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = (uint32_t)(first + i);
        if (i == 0 || (token & 3) == 0)
            gumbel_words(stream, token >> 2, 0, words);
        uint32_t r = words[token & 3];
        out[i] = r < GUMBEL_TAIL_WORDS ? gumbel_of_token(stream, token) : gumbel_of_word(r);
    }
}

#endif
