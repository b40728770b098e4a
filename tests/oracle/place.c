/* SPDX-License-Identifier: Apache-2.0 */
#include "place.h"

#include "inputs.h"
#include "oracle.h"

/* Inverses of the multipliers modulo 2^32. */
#define INVERSE_0 0x991A7CDBu
#define INVERSE_1 0x6D7CAE67u

void philox_inverse(const uint32_t out[4], const uint32_t key[2], uint32_t counter[4])
{
    uint32_t c[4] = {out[0], out[1], out[2], out[3]};
    for (uint32_t round = 10; round-- > 0;) {
        uint32_t c2 = c[1] * INVERSE_1, c0 = c[3] * INVERSE_0;
        uint32_t high1 = (uint32_t)(0xCD9E8D57ull * c2 >> 32);
        uint32_t high0 = (uint32_t)(0xD2511F53ull * c0 >> 32);
        c[1] = c[0] ^ high1 ^ (key[0] + round * 0x9E3779B9u);
        c[3] = c[2] ^ high0 ^ (key[1] + round * 0xBB67AE85u);
        c[0] = c0;
        c[2] = c2;
    }
    for (int i = 0; i < 4; i++)
        counter[i] = c[i];
}

place place_of_word(uint32_t r, uint64_t *state)
{
    for (;;) {
        uint64_t seed = random_bits(state), low = random_bits(state), high = random_bits(state);
        uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
        uint32_t out[4] = {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high,
                           (uint32_t)(high >> 32)};
        uint32_t word = (uint32_t)random_bits(state) & 3, counter[4];
        out[word] = r;
        philox_inverse(out, key, counter);
        /* One counter in 16 is of a token below 2^31 and a domain below 2^31. */
        if (counter[0] >> 29 == 0 && counter[3] >> 31 == 0)
            return (place){seed, counter[1], counter[2], counter[3],
                           (int64_t)counter[0] * 4 + word};
    }
}

void place_words(const place *at, uint32_t *r, uint32_t *r2)
{
    uint32_t key[2] = {(uint32_t)at->seed, (uint32_t)(at->seed >> 32)};
    uint32_t counter[4] = {(uint32_t)(at->token >> 2), at->position, at->sample, at->domain};
    uint32_t out[4];
    oracle_philox(counter, key, 10, out);
    *r = out[at->token & 3];
    counter[3] |= 0x80000000u;
    oracle_philox(counter, key, 10, out);
    *r2 = out[at->token & 3];
}

float place_noise(const place *at)
{
    float g;
    gumbel_error error = {"", ""};
    if (gumbel_noise(at->seed, at->position, at->sample, at->domain, at->token, 1, &g, &error) !=
        GUMBEL_OK)
        die("gumbel_noise: %s: %s", error.field, error.message);
    return g;
}
