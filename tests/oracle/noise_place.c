/* SPDX-License-Identifier: Apache-2.0 */
#include "noise_place.h"

#include "inputs.h"
#include "oracle.h"

/* Inverses of the multipliers modulo 2^32. */
#define INVERSE_0 0x991A7CDBu
#define INVERSE_1 0x6D7CAE67u

void invert_philox(const uint32_t out[4], const uint32_t key[2], uint32_t counter[4])
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

/* Random words of one call of Philox. */
static void draw_philox_words(uint32_t out[4], uint64_t *state)
{
    uint64_t low = random_bits(state), high = random_bits(state);
    out[0] = (uint32_t)low;
    out[1] = (uint32_t)(low >> 32);
    out[2] = (uint32_t)high;
    out[3] = (uint32_t)(high >> 32);
}

/* Inverts Philox with a random key: finds the place with the words `out`, whose token is part of
 * the counter. Returns 0 if the token is not below 2^`bits`, or if bit 31 of the domain is not
 * `kind`. */
static int find_place(const uint32_t out[4], int bits, uint32_t kind, uint64_t *state,
                      noise_place *found)
{
    uint64_t seed = random_bits(state);
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, counter[4];
    invert_philox(out, key, counter);
    *found = (noise_place){seed, counter[1], counter[2], counter[3] & 0x7fffffffu, counter[0]};
    return counter[0] >> bits == 0 && counter[3] >> 31 == kind;
}

noise_place find_token_by_word(uint32_t own, uint64_t *state)
{
    for (;;) {
        uint32_t out[4], word = (uint32_t)random_bits(state) & 3;
        noise_place found;
        draw_philox_words(out, state);
        out[word] = own;
        /* About one random key in 16 is accepted. */
        if (!find_place(out, 29, 0, state, &found))
            continue;
        found.token = found.token * 4 + word;
        if (place_words(&found).r2 % 64 != (uint32_t)found.token % 64)
            return found;
    }
}

noise_place find_token_by_block_words(uint32_t r, uint32_t r2, uint64_t *state)
{
    for (;;) {
        uint32_t out[4], half = (uint32_t)random_bits(state) & 1;
        noise_place found;
        draw_philox_words(out, state);
        out[2 * half] = r;
        out[2 * half + 1] = r2;
        /* About one random key in 512 is accepted. */
        if (!find_place(out, 24, 1, state, &found))
            continue;
        found.token = found.token * 128 + half * 64 + r2 % 64;
        return found;
    }
}

oracle_stream place_stream(const noise_place *at)
{
    return (oracle_stream){at->seed, at->position, at->sample, at->domain, 0};
}

oracle_words place_words(const noise_place *at)
{
    return oracle_words_of(place_stream(at), at->token);
}

float place_noise(const noise_place *at)
{
    float g;
    gumbel_error error = {"", ""};
    if (gumbel_noise(at->seed, at->position, at->sample, at->domain, at->token, 1, &g, &error) !=
        GUMBEL_OK)
        die("gumbel_noise: %s: %s", error.field, error.message);
    return g;
}
