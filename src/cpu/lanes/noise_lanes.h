/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Computes noise before the draw (eq. 5 to 7), for calls that store it, on the sixteen lanes
 *        of cpu/isa/lanes_*.h. The operations, and so the bits, are those of noise.h.
 * COST   For a block of 64 tokens (four vectors), Philox takes about 110 vector operations, and the
 *        two logarithms 50 per vector. The block's own two words take as long as six vectors.
 */
#ifndef GUMBEL_CPU_NOISE_LANES_H
#define GUMBEL_CPU_NOISE_LANES_H

#include "cpu/lanes/draw_lanes.h"

/* gumbel_log_split(). The exponent is biased by 127 while it is shifted, because the shift is
 * unsigned. */
LANES void lanes_log_split(v16f x, v16f *exponent, v16f *f)
{
    v16u shifted = vu_add(vu_of_bits(x), vu_set(0u - 0x3f3504f3u));
    v16u biased = vu_shift_right(vu_add(shifted, vu_set(127u << 23)), 23);
    v16u m = vu_add(vu_and(shifted, vu_set(0x007fffffu)), vu_set(0x3f3504f3u));
    *exponent = vf_sub(vf_of_int(biased), vf_set(127.0f));
    *f = vf_sub(vf_of_bits(m), vf_set(1.0f));
}

/* -gumbel_log_assemble(). The negation is a product with -1, which also flips the sign of zero. */
LANES v16f lanes_minus_log(v16f exponent, v16f f)
{
    static const float terms[GUMBEL_LOG_TERMS] = GUMBEL_LOG_POLYNOMIAL;
    v16f square = vf_mul(f, f), p = vf_set(terms[GUMBEL_LOG_TERMS - 1]);
    UNROLLED
    for (int i = GUMBEL_LOG_TERMS - 2; i >= 0; i--)
        p = vf_fma(p, f, vf_set(terms[i]));
    v16f tail = vf_fma(vf_mul(square, f), p, vf_mul(exponent, vf_set(GUMBEL_LN2_LOW)));
    v16f log =
        vf_fma(exponent, vf_set(GUMBEL_LN2_HIGH), vf_add(f, vf_fma(vf_set(-0.5f), square, tail)));
    return vf_mul(log, vf_set(-1.0f));
}

/* gumbel_exponential_of_word(). */
LANES v16f lanes_exponential(v16u r)
{
    v16u flipped = vu_xor3(r, vu_set(0xffffffffu), vu_set(0));
    v16f word = vf_of_int(r), exponent, f;
    v16m high = vf_less(word, vf_set(0.0f)); /* bit 31 of r is set */
    v16f v = vf_fma(vf_select(high, vf_of_int(flipped), word), vf_set(0x1p-32f), vf_set(0x1p-33f));
    lanes_log_split(v, &exponent, &f);
    v16m whole = vf_less(v, vf_set(GUMBEL_HALVING));
    v16f low_exponent = vf_select(whole, vf_set(0.0f), vf_set(-1.0f));
    v16f low_f = vf_select(whole, vf_mul(v, vf_set(-1.0f)), vf_fma(vf_set(-2.0f), v, vf_set(1.0f)));
    return lanes_minus_log(vf_select(high, exponent, low_exponent), vf_select(high, f, low_f));
}

/* The noise of a block of 64 tokens. */
LANES void make_noise_block(gumbel_stream stream, uint32_t token, float *out)
{
    v16u own[4];
    uint32_t r, r2;
    gumbel_block_words(stream, token, &r, &r2);
    gumbel_block_noise block = gumbel_block_noise_of(r, r2);
    philox_tokens(own, token, stream);
    UNROLLED
    for (int q = 0; q < 4; q++)
        vf_store(out + 16 * q, vf_add(vf_set(block.least), lanes_exponential(own[q])));
    out[block.place] = block.least;
    UNROLLED
    for (int q = 0; q < 4; q++) {
        v16f exponent, f;
        lanes_log_split(vf_load(out + 16 * q), &exponent, &f);
        vf_store(out + 16 * q, lanes_minus_log(exponent, f));
    }
}

static void make_noise(gumbel_stream stream, uint32_t token, int blocks, float *out)
{
    for (; blocks > 0; blocks--, token += GUMBEL_BLOCK, out += GUMBEL_BLOCK)
        make_noise_block(stream, token, out);
}

#endif
