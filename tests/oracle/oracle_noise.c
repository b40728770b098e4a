/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle's noise, written only from docs/maths.md, sections 2 to 4: in double, and by the
 * float32 steps of the contract.
 */
#include "oracle.h"

#include <math.h>

#define BLOCK_DOMAIN 0x80000000u

void oracle_philox(const uint32_t counter[4], const uint32_t key[2], int rounds, uint32_t out[4])
{
    uint32_t l0 = counter[0], r0 = counter[1], l1 = counter[2], r1 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < rounds; round++) {
        uint64_t product0 = 0xD2511F53ull * l0;
        uint64_t product1 = 0xCD9E8D57ull * l1;
        l0 = (uint32_t)(product1 >> 32) ^ r0 ^ k0;
        r0 = (uint32_t)product1;
        l1 = (uint32_t)(product0 >> 32) ^ r1 ^ k1;
        r1 = (uint32_t)product0;
        k0 += 0x9E3779B9u; /* the golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    out[0] = l0;
    out[1] = r0;
    out[2] = l1;
    out[3] = r1;
}

uint64_t oracle_row_seed(uint64_t seed, uint64_t row)
{
    uint64_t mixed = row * 0x9E3779B97F4A7C15ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
    return seed ^ mixed ^ (mixed >> 31);
}

oracle_words oracle_words_of(oracle_stream stream, int64_t token)
{
    uint64_t seed = stream.seed, high = stream.position >> 32;
    if (high)
        seed = oracle_row_seed(seed, UINT64_MAX - high);
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t position = (uint32_t)stream.position, out[4];
    oracle_philox((uint32_t[]){(uint32_t)(token / 4), position, stream.sample, stream.domain}, key,
                  10, out);
    oracle_words words = {.own = out[token % 4]};
    oracle_philox((uint32_t[]){(uint32_t)(token / 128), position, stream.sample,
                               stream.domain + BLOCK_DOMAIN},
                  key, 10, out);
    int64_t half = token / 64 % 2;
    words.r = out[2 * half];
    words.r2 = out[2 * half + 1];
    return words;
}

double oracle_exponential(uint32_t r)
{
    return r < 0x80000000u ? -log1p(-ldexp(r + 0.5, -32)) : -log(ldexp((double)~r + 0.5, -32));
}

/* u of a block's words if r < 256: 64 bits, the last six of which are replaced by their
 * midpoint. */
static double tail_uniform(uint32_t r, uint32_t r2)
{
    return ldexp(ldexp(r, 32) + (r2 - r2 % 64) + 32, -64);
}

double oracle_least(uint32_t r, uint32_t r2)
{
    return (r < 256 ? -log1p(-tail_uniform(r, r2)) : oracle_exponential(r)) / 64;
}

double oracle_noise(oracle_stream stream, int64_t token)
{
    oracle_words words = oracle_words_of(stream, token);
    double exponential = oracle_least(words.r, words.r2);
    if (token % 64 != words.r2 % 64)
        exponential += oracle_exponential(words.own);
    return -log(exponential);
}

/* exponent * ln 2 + log1p(f) by eq. 7a. */
static float exact_log_of(float exponent, float f)
{
    static const float terms[] = {0x1.1231e6p-4f,  -0x1.e295acp-4f, 0x1.ea80aap-4f,
                                  -0x1.fb93f4p-4f, 0x1.22e71p-3f,   -0x1.555dfep-3f,
                                  0x1.99a97ap-3f,  -0x1.00000ap-2f, 0x1.55553cp-2f};
    float square = f * f, cube = square * f, p = 0;
    for (int i = 0; i < 9; i++)
        p = fmaf(p, f, terms[i]);
    float low = fmaf(cube, p, exponent * -0x1.bd0106p-13f);
    float rest = fmaf(-0.5f, square, low);
    return fmaf(exponent, 0x1.63p-1f, f + rest);
}

float oracle_exact_log(float x)
{
    int exponent;
    float m = frexpf(x, &exponent);
    if (m < 0x1.6a09e6p-1f) { /* sqrt(1/2) */
        m *= 2;
        exponent--;
    }
    return exact_log_of((float)exponent, m - 1);
}

float oracle_exact_exponential(uint32_t r)
{
    if (r >= 0x80000000u)
        return -oracle_exact_log(fmaf((float)~r, 0x1p-32f, 0x1p-33f));
    float v = fmaf((float)r, 0x1p-32f, 0x1p-33f);
    return v < 1 - sqrt(0.5) ? -exact_log_of(0, -v) : -exact_log_of(-1, 1 - 2 * v);
}

float oracle_exact_least(uint32_t r, uint32_t r2)
{
    return (r < 256 ? (float)tail_uniform(r, r2) : oracle_exact_exponential(r)) / 64;
}

float oracle_exact_noise(oracle_stream stream, int64_t token)
{
    oracle_words words = oracle_words_of(stream, token);
    float exponential = oracle_exact_least(words.r, words.r2);
    if (token % 64 != words.r2 % 64)
        exponential += oracle_exact_exponential(words.own);
    return -oracle_exact_log(exponential);
}
