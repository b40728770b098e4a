/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT Words of Philox4x32-10 on the sixteen lanes of cpu/isa/lanes_*.h (maths/noise.h). COST
 * Sixteen counters, 64 words, take about 110 vector operations.
 */
#ifndef GUMBEL_CPU_PHILOX_LANES_H
#define GUMBEL_CPU_PHILOX_LANES_H

#include "cpu/cpu_kernels.h"

/* One round on sixteen counters whose words all differ. */
LANES void philox_round(v16u c[4], uint32_t key0, uint32_t key1)
{
    v16u high0, low0, high1, low1;
    vu_multiply_wide(c[0], vu_set(GUMBEL_PHILOX_MULTIPLIER_0), &high0, &low0);
    vu_multiply_wide(c[2], vu_set(GUMBEL_PHILOX_MULTIPLIER_1), &high1, &low1);
    c[0] = vu_xor3(high1, c[1], vu_set(key0));
    c[1] = low1;
    c[2] = vu_xor3(high0, c[3], vu_set(key1));
    c[3] = low0;
}

/* The first two rounds. Three of the four words start equal in all lanes, so half of the products
 * are scalar. */
LANES void philox_start(v16u c[4], v16u counter, gumbel_stream stream, uint32_t key0, uint32_t key1)
{
    v16u high, low;
    uint64_t product = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_1 * stream.sample;
    vu_multiply_wide(counter, vu_set(GUMBEL_PHILOX_MULTIPLIER_0), &high, &low);
    uint32_t first = (uint32_t)(product >> 32) ^ stream.position ^ key0;
    uint32_t second = (uint32_t)product;
    v16u third = vu_xor3(high, vu_set(stream.domain), vu_set(key1));
    v16u fourth = low;

    product = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_0 * first;
    vu_multiply_wide(third, vu_set(GUMBEL_PHILOX_MULTIPLIER_1), &high, &low);
    c[0] = vu_xor3(high, vu_set(second), vu_set(key0 + GUMBEL_PHILOX_WEYL_0));
    c[1] = low;
    c[2] = vu_xor3(vu_set((uint32_t)(product >> 32)), fourth, vu_set(key1 + GUMBEL_PHILOX_WEYL_1));
    c[3] = vu_set((uint32_t)product);
}

/* Words of sixteen counters, of tokens (kind 0) or blocks (GUMBEL_BLOCK_DOMAIN). */
LANES void philox_words(v16u c[4], v16u counter, uint32_t kind, gumbel_stream stream)
{
    uint32_t key0 = (uint32_t)stream.seed, key1 = (uint32_t)(stream.seed >> 32);
    stream.domain |= kind;
    philox_start(c, counter, stream, key0, key1);
    UNROLLED
    for (uint32_t i = 2; i < GUMBEL_PHILOX_ROUNDS; i++)
        philox_round(c, key0 + i * GUMBEL_PHILOX_WEYL_0, key1 + i * GUMBEL_PHILOX_WEYL_1);
}

/* Words of the 64 tokens from `token` on, a multiple of 64: lane j of r[q] belongs to token + 16 q
 * + j. The counters are arranged so that a transpose within quarters puts the words in order. */
LANES void philox_tokens(v16u r[4], uint32_t token, gumbel_stream stream)
{
    static const uint32_t places[CPU_LANES] = {0, 4, 8,  12, 1, 5, 9,  13,
                                               2, 6, 10, 14, 3, 7, 11, 15};
    philox_words(r, vu_add(vu_set(token >> 2), vu_load(places)), 0, stream);
    vu_transpose(r);
}

#endif
