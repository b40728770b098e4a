/* SPDX-License-Identifier: Apache-2.0
 *
 * The noise of a token: Philox4x32-10, standard exponentials from its words, the minimum
 * exponential of a block, and standard Gumbel variates (docs/maths.md, sections 2 and 3). Scalar
 * form; the vector forms repeat it operation by operation.
 *
 * A block is 64 tokens, aligned by id. Two words of the block determine the minimum of its 64
 * exponentials and the token that has it. The exponential distribution is memoryless, so every
 * other token's exponential is that minimum plus an exponential of the token's own word. The
 * block's largest noise is then known without its tokens' words, and one comparison skips a block
 * that cannot win.
 */
#ifndef GUMBEL_MATHS_NOISE_H
#define GUMBEL_MATHS_NOISE_H

#include "maths/elementary.h"

#define GUMBEL_PHILOX_ROUNDS       10
#define GUMBEL_PHILOX_MULTIPLIER_0 0xD2511F53u
#define GUMBEL_PHILOX_MULTIPLIER_1 0xCD9E8D57u
#define GUMBEL_PHILOX_WEYL_0       0x9E3779B9u
#define GUMBEL_PHILOX_WEYL_1       0xBB67AE85u
/* Tokens in a block. */
#define GUMBEL_BLOCK 64
/* Domain bit of the words of blocks; words of tokens lack it. */
#define GUMBEL_BLOCK_DOMAIN 0x80000000u
/* A block's first word below this, probability 2^-24, takes further bits from the second. */
#define GUMBEL_TAIL_WORDS 256u
/* 1 - sqrt(1/2): from here on 1 - v is halved into the range of the logarithm's polynomial. */
#define GUMBEL_HALVING 0x1.2bec34p-2f
/* 2^-23 ln 2, and (6 + 32 + 127) ln 2. */
#define GUMBEL_NOISE_BOUND_SLOPE 0x1.62e42ep-24f
#define GUMBEL_NOISE_BOUND_MAX   0x1.c97a26p+6f

/* Philox key and counter of a draw, except the token. */
typedef struct gumbel_stream {
    uint64_t seed;
    uint32_t position;
    uint32_t sample;
    uint32_t domain;
} gumbel_stream;

/* See gumbel_row_seed() of gumbel.h. */
GUMBEL_INLINE uint64_t gumbel_mix_seed(uint64_t seed, uint64_t row)
{
    uint64_t x = row * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return seed ^ x ^ (x >> 31);
}

/* The stream of a position. A high half that is not 0 is mixed into the seed. */
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

/* Four random words. With `kind` 0: one for each of the tokens 4 * count .. 4 * count + 3; with
 * GUMBEL_BLOCK_DOMAIN: two for each of the blocks 2 * count and 2 * count + 1. */
GUMBEL_INLINE void gumbel_philox_words(gumbel_stream stream, uint32_t count, uint32_t kind,
                                       uint32_t out[4])
{
    out[0] = count;
    out[1] = stream.position;
    out[2] = stream.sample;
    out[3] = stream.domain | kind;
    gumbel_philox_block(out, (uint32_t)stream.seed, (uint32_t)(stream.seed >> 32),
                        GUMBEL_PHILOX_ROUNDS);
}

/* g = -log(E) of a standard exponential E. */
GUMBEL_INLINE float gumbel_noise_of_exponential(float e) { return -gumbel_log(e); }

/* E of a word r (eq. 5). With x = r below 2^31, else ~r, v = (x + 0.5) * 2^-32 is in (0, 0.5]; E =
 * -log1p(-v) below, -log(v) above, so that neither end of u is ever rounded away. */
GUMBEL_INLINE float gumbel_exponential_of_word(uint32_t r)
{
    int high = r >= 0x80000000u;
    float v = fmaf((float)(int32_t)(high ? ~r : r), 0x1p-32f, 0x1p-33f);
    /* 1 - v, or v itself, as 2^exponent * (1 + f) with an exact f. */
    int halve = v >= GUMBEL_HALVING;
    float exponent = halve ? -1.0f : 0.0f, f = halve ? fmaf(-2.0f, v, 1.0f) : -v;
    if (high)
        gumbel_log_split(v, &exponent, &f);
    return -gumbel_log_assemble(exponent, f);
}

/* The largest noise of a block: its exponential, the minimum of the block, and the place of its
 * token, 0 to 63. */
typedef struct gumbel_block_noise {
    float least;
    uint32_t place;
} gumbel_block_noise;

/* The block's noise from its two words (eq. 6). `least` and `place` use different bits, 58 and 6,
 * so they are independent. For a small r, u is below 2^-24, where E = -log1p(-u) is u to within
 * half an ulp. */
GUMBEL_INLINE gumbel_block_noise gumbel_block_noise_of(uint32_t r, uint32_t r2)
{
    uint64_t u = (uint64_t)r << 32 | (r2 & ~63u) | 32;
    float e = r < GUMBEL_TAIL_WORDS ? (float)u * 0x1p-64f : gumbel_exponential_of_word(r);
    gumbel_block_noise b = {e * 0x1p-6f, r2 & 63u};
    return b;
}

/* The two words of a token's block. */
GUMBEL_INLINE void gumbel_block_words(gumbel_stream stream, uint32_t token, uint32_t *r,
                                      uint32_t *r2)
{
    uint32_t words[4];
    gumbel_philox_words(stream, token >> 7, GUMBEL_BLOCK_DOMAIN, words);
    *r = token & 64 ? words[2] : words[0];
    *r2 = token & 64 ? words[3] : words[1];
}

/* g of a token from its block's noise and its own word r, which is unused for the token at
 * block.place (eq. 7). */
GUMBEL_INLINE float gumbel_noise_of_word(gumbel_block_noise block, uint32_t token, uint32_t r)
{
    float e = block.least;
    if ((token & 63) != block.place)
        e += gumbel_exponential_of_word(r);
    return gumbel_noise_of_exponential(e);
}

/* An upper bound of g in a block with first word r; callers add a margin of 1e-4. E >= u / 64, and
 * the bits of a float, as an integer, bound its log2 from below. The bound is 114 for r = 0, and g
 * is at most 46. */
GUMBEL_INLINE float gumbel_noise_bound_of_word(uint32_t r)
{
    return fmaf((float)(int32_t)gumbel_bits_of((float)r), -GUMBEL_NOISE_BOUND_SLOPE,
                GUMBEL_NOISE_BOUND_MAX);
}

/* g of one token. */
GUMBEL_INLINE float gumbel_noise_of_token(gumbel_stream stream, uint32_t token)
{
    uint32_t r, r2, words[4];
    gumbel_block_words(stream, token, &r, &r2);
    gumbel_block_noise block = gumbel_block_noise_of(r, r2);
    if ((token & 63) == block.place)
        return gumbel_noise_of_exponential(block.least);
    gumbel_philox_words(stream, token >> 2, 0, words);
    return gumbel_noise_of_word(block, token, words[token & 3]);
}

/* g of the tokens [first, first + count): one Philox call for four tokens, and one a block. */
GUMBEL_INLINE void gumbel_fill_noise(gumbel_stream stream, uint32_t first, int64_t count,
                                     float *out)
{
    gumbel_block_noise block = {0, 0};
    uint32_t words[4];
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = (uint32_t)(first + i), r, r2;
        if (i == 0 || (token & 63) == 0) {
            gumbel_block_words(stream, token, &r, &r2);
            block = gumbel_block_noise_of(r, r2);
        }
        if (i == 0 || (token & 3) == 0)
            gumbel_philox_words(stream, token >> 2, 0, words);
        out[i] = gumbel_noise_of_word(block, token, words[token & 3]);
    }
}

#endif
