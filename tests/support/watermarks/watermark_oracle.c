/* SPDX-License-Identifier: Apache-2.0 */
#include "watermark_oracle.h"

#include "inputs.h"

#include <math.h>
#include <string.h>

static uint64_t load_word(const uint8_t *bytes)
{
    uint64_t word = 0;
    for (int i = 7; i >= 0; i--)
        word = word << 8 | bytes[i];
    return word;
}

static void store_word(uint8_t *bytes, uint64_t word)
{
    for (int i = 0; i < 8; i++, word >>= 8)
        bytes[i] = (uint8_t)word;
}

static uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static void run_rounds(uint64_t v[4], int rounds)
{
    while (rounds-- > 0) {
        v[0] += v[1], v[1] = rotate(v[1], 13), v[1] ^= v[0], v[0] = rotate(v[0], 32);
        v[2] += v[3], v[3] = rotate(v[3], 16), v[3] ^= v[2];
        v[0] += v[3], v[3] = rotate(v[3], 21), v[3] ^= v[0];
        v[2] += v[1], v[1] = rotate(v[1], 17), v[1] ^= v[2], v[2] = rotate(v[2], 32);
    }
}

uint64_t oracle_siphash(const uint8_t key[16], const uint8_t *message, size_t size)
{
    uint64_t v[4];
    uint8_t last[8] = {0};
    for (int i = 0; i < 4; i++)
        v[i] = load_word((const uint8_t *)"uespemosmodnarodarenegylsetybdet" + 8 * i) ^
               load_word(key + 8 * (i % 2));
    for (size_t i = 0; i < size / 8; i++) {
        const uint64_t word = load_word(message + 8 * i);
        v[3] ^= word;
        run_rounds(v, 2);
        v[0] ^= word;
    }
    memcpy(last, message + size / 8 * 8, size % 8);
    last[7] = (uint8_t)size;
    v[3] ^= load_word(last);
    run_rounds(v, 2);
    v[0] ^= load_word(last);
    v[2] ^= 0xff;
    run_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The hash of a purpose, a context length and further bytes. */
static uint64_t hash_purpose(const uint64_t key[2], int purpose, int32_t context,
                             const uint8_t *more, size_t size)
{
    uint8_t bytes[16], message[128] = {(uint8_t)purpose, (uint8_t)context};
    store_word(bytes, key[0]);
    store_word(bytes + 8, key[1]);
    memcpy(message + 8, more, size);
    return oracle_siphash(bytes, message, 8 + (size + 7) / 8 * 8);
}

static int is_new(int32_t context, const int32_t *text, int64_t count)
{
    if (count < context)
        return 0;
    for (int64_t end = context; end < count; end++)
        if (memcmp(text + end - context, text + count - context, (size_t)context * sizeof *text) ==
            0)
            return 0;
    return 1;
}

oracle_draw oracle_watermark(const uint64_t key[2], int32_t context, const int32_t *text,
                             int64_t count, uint64_t seed, uint64_t position)
{
    uint8_t bytes[64] = {0};
    oracle_draw draw = {seed, position, 0};
    if (context == 0)
        return draw;
    draw.seed = hash_purpose(key, 1, context, bytes, 0);
    draw.watermarked = is_new(context, text, count);
    if (draw.watermarked) {
        for (int32_t k = 0; k < context; k++) {
            const uint32_t token = (uint32_t)text[count - 1 - k];
            for (int i = 0; i < 4; i++)
                bytes[4 * k + i] = (uint8_t)(token >> 8 * i);
        }
        draw.position = hash_purpose(key, 2, context, bytes, 4 * (size_t)context);
    } else {
        store_word(bytes, seed);
        store_word(bytes + 8, position);
        draw.position = hash_purpose(key, 3, context, bytes, 16);
    }
    return draw;
}

double oracle_watermark_score(const uint64_t key[2], int32_t context, uint32_t sample,
                              uint32_t domain, const int32_t *text, int64_t i)
{
    const oracle_draw draw = oracle_watermark(key, context, text, i, 0, 0);
    gumbel_error error;
    float g;
    if (!draw.watermarked)
        return NAN;
    if (gumbel_noise(draw.seed, draw.position, sample, domain, text[i], 1, &g, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    /* 1 - exp(-e), and its series where the subtraction would cancel */
    const double e = exp(-(double)g);
    return -log(e < 1e-3 ? e * (1 - e / 2 + e * e / 6 - e * e * e / 24) : 1 - exp(-e));
}
