/* SPDX-License-Identifier: Apache-2.0 */
#include "core/noise.h"

#include "core/fail.h"

#include <inttypes.h>

gumbel_status gumbel_philox4x32(const uint32_t counter[4], const uint32_t key[2], int rounds,
                                uint32_t out[4])
{
    if (!counter || !key || !out || rounds < 0 || rounds > 16)
        return GUMBEL_ERROR_ARGUMENT;
    uint32_t block[4];
    memcpy(block, counter, sizeof block);
    gumbel_philox_block(block, key[0], key[1], rounds);
    memcpy(out, block, sizeof block);
    return GUMBEL_OK;
}

uint64_t gumbel_row_seed(uint64_t seed, uint64_t row) { return gumbel_mix_seed(seed, row); }

gumbel_status gumbel_noise(uint64_t seed, uint32_t position, uint32_t sample, uint32_t domain,
                           int64_t first_token, int64_t count, float *out, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(domain >= GUMBEL_TAIL_DOMAIN, error, "domain",
                     "domain is %#x; it must be below 2^31", (unsigned)domain);
    GUMBEL_REFUSE_IF(first_token < 0 || count < 0 || first_token > (INT64_C(1) << 31) ||
                         count > (INT64_C(1) << 31) - first_token,
                     error, "first_token",
                     "tokens %" PRId64 " .. + %" PRId64 " do not fit in 0..2^31", first_token,
                     count);
    GUMBEL_REFUSE_IF(!out && count > 0, error, "out", "out is NULL");
    gumbel_stream stream = {seed, position, sample, domain};
    uint32_t words[4];
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = (uint32_t)(first_token + i);
        if (i == 0 || (token & 3) == 0)
            gumbel_words(stream, token >> 2, 0, words);
        uint32_t r = words[token & 3];
        out[i] = r < GUMBEL_TAIL_WORDS ? gumbel_of_token(stream, token) : gumbel_of_word(r);
    }
    return GUMBEL_OK;
}
