/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the draw from a row's transformed logits (eq. 3, 4) and the mass of its blocks, on the
 *        sixteen lanes of cpu/lanes_*.h.
 * COST   Philox for 64 tokens is about 110 vector operations, the screen 6 a vector, the mass about
 *        15 a vector. The noise itself is computed for a handful of tokens a row.
 * SCREEN A standard exponential E is at least u, and a token beats the best score so far only if E
 *        <= exp(z - best). So a token with u above a bound that is never below exp(z - best) cannot
 *        win, and its logarithms are never taken. The bound is 2^n (1 + f) >= 2^(n + f), made by
 *        writing (z - best) log2 e into the bits of a float; a margin covers the rounding of z + g.
 *        Tokens that pass, about ln V a row, are scored exactly: the screen can cost time, never a
 *        token.
 */
#ifndef GUMBEL_CPU_DRAW_LANES_H
#define GUMBEL_CPU_DRAW_LANES_H

#include "cpu/cpu_kernels.h"

/* One round of Philox on sixteen blocks whose words all differ. */
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

/* The first two rounds: three of the four words start out equal in all lanes, so that half of the
 * products are scalar. */
LANES void philox_start(v16u c[4], v16u block, gumbel_stream stream, uint32_t key0, uint32_t key1)
{
    v16u high, low;
    uint64_t product = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_1 * stream.sample;
    vu_multiply_wide(block, vu_set(GUMBEL_PHILOX_MULTIPLIER_0), &high, &low);
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

/* Words of the 64 tokens from `token` on, a multiple of 64: r[q] lane j is that of token + 16 q +
 * j. The blocks stand in the lanes so that a transpose within quarters puts the words in order. */
LANES void philox_words(v16u r[4], uint32_t token, gumbel_stream stream)
{
    static const uint32_t places[CPU_LANES] = {0, 4, 8,  12, 1, 5, 9,  13,
                                               2, 6, 10, 14, 3, 7, 11, 15};
    uint32_t key0 = (uint32_t)stream.seed, key1 = (uint32_t)(stream.seed >> 32);
    philox_start(r, vu_add(vu_set(token >> 2), vu_load(places)), stream, key0, key1);
    UNROLLED
    for (uint32_t i = 2; i < GUMBEL_PHILOX_ROUNDS; i++)
        philox_round(r, key0 + i * GUMBEL_PHILOX_WEYL_0, key1 + i * GUMBEL_PHILOX_WEYL_1);
    vu_transpose(r);
}

/* 2^23 log2 e, and the exponent bias that makes the bound one of vf_of_word(r). */
#define SCREEN_SLOPE  0x1.715476p+23f
#define SCREEN_OFFSET ((127.0f + WORD_BITS) * 0x1p23f)
/* A z this far above the threshold passes without a bound: exp() of it would not fit a float. */
#define SCREEN_REACH 60.0f

/* The best score so far less a margin: 1e-3 for the screen's own rounding, and 4 ulp of the best
 * for that of z + g. */
static inline float screen_threshold(float best)
{
    return best - fmaf(fabsf(best), 0x1p-21f, 1e-3f);
}

/* Lanes whose token may beat the threshold, as bits; NaN and +inf are among them. */
LANES uint32_t screen(v16f z, v16u r, v16f threshold, v16f reach)
{
    v16f bound = vf_fma(vf_sub(z, threshold), vf_set(SCREEN_SLOPE), vf_set(SCREEN_OFFSET));
    v16m below = vf_less(vf_of_word(r), vf_of_bits(vu_of_float(bound)));
    return vm_bits(below) | (vm_bits(vf_less(z, reach)) ^ 0xffffu);
}

/* The same for one token. */
static inline int screen_one(float z, uint32_t r, float threshold)
{
    float d = z - threshold;
    if (!(d < SCREEN_REACH))
        return d >= SCREEN_REACH;
    float bound = fmaf(d, SCREEN_SLOPE, (127.0f + 32.0f) * 0x1p23f);
    return bound > 0.0f && (float)r < gumbel_float_of((uint32_t)bound + 1);
}

/* Score the tokens of a block that passed the screen, each against the best so far; of a block with
 * a NaN or +inf, record that. */
static __attribute__((noinline)) void settle_block(const cpu_draw *d, int sample, const float *z,
                                                   const v16u words[4], const uint32_t pass[4],
                                                   uint32_t token)
{
    uint32_t r[GUMBEL_BLOCK];
    gumbel_summary *s = &d->summaries[sample];
    gumbel_stream stream = d->row->stream;
    stream.sample += (uint32_t)sample;
    if (cpu_flag_block(d->summaries, z))
        return;
    for (int q = 0; q < 4; q++)
        vu_store(r + 16 * q, words[q]);
    for (uint32_t q = 0; q < 4; q++)
        for (uint32_t lanes = pass[q]; lanes != 0; lanes &= lanes - 1) {
            uint32_t i = 16 * q + (uint32_t)__builtin_ctz(lanes);
            if (screen_one(z[i], r[i], screen_threshold(s->best_score)))
                cpu_offer(s, stream, z[i], r[i], token + i);
        }
}

/* One sample's draw from a block of 64 tokens. */
LANES void draw_block(const cpu_draw *d, int sample, const float *z, uint32_t token)
{
    v16u r[4];
    uint32_t pass[4];
    gumbel_stream stream = d->row->stream;
    stream.sample += (uint32_t)sample;
    float best = d->summaries[sample].best_score, threshold = screen_threshold(best);
    v16f lowest = vf_set(threshold), reach = vf_set(threshold + SCREEN_REACH);
    philox_words(r, token, stream);
    UNROLLED
    for (int q = 0; q < 4; q++)
        pass[q] = screen(vf_load(z + 16 * q), r[q], lowest, reach);
    if (__builtin_expect((pass[0] | pass[1] | pass[2] | pass[3]) != 0, 0))
        settle_block(d, sample, z, r, pass, token);
}

/* The same with noise that was made ahead: a load and an add take the place of Philox and screen.
 * Blocks at the ends of the shard may lack noise at theirs. */
LANES void draw_given_block(const cpu_draw *d, int sample, const float *z, int at)
{
    uint32_t below = 0;
    if (at >= d->low && at + GUMBEL_BLOCK <= d->high) {
        const float *g = d->noise + sample * d->noise_stride + (at - d->low);
        v16f best = vf_set(d->summaries[sample].best_score);
        below = 0xffffu;
        UNROLLED
        for (int q = 0; q < 4; q++) {
            v16f score = vf_add(vf_load(z + 16 * q), vf_load(g + 16 * q));
            below &= vm_bits(vf_less(score, best));
        }
    }
    if (__builtin_expect(below != 0xffffu, 0) && !cpu_flag_block(d->summaries, z))
        cpu_draw_given(d, sample, z, at);
}

/* Greedy: the score is z. */
LANES void argmax_block(gumbel_summary *s, const float *z, float largest, uint32_t token)
{
    if (!(largest > s->best_score))
        return;
    uint32_t i = 0;
    while (z[i] != largest)
        i++;
    /* Not `largest`, which may be the other zero. */
    gumbel_summary_offer(s, z[i], z[i], (int32_t)(token + i));
}

/* exp(x) for x <= 0, operation by operation gumbel_exp(). */
LANES v16f lanes_exp(v16f x)
{
    static const float terms[GUMBEL_EXP_TERMS] = GUMBEL_EXP_POLYNOMIAL;
    v16f clamped = vf_max(x, vf_set(GUMBEL_EXP_LOWEST));
    v16f shifted = vf_fma(clamped, vf_set(GUMBEL_LOG2E), vf_set(GUMBEL_ROUNDING));
    v16f exponent = vf_sub(shifted, vf_set(GUMBEL_ROUNDING));
    v16f f = vf_fma(exponent, vf_set(-GUMBEL_LN2_LOW),
                    vf_fma(exponent, vf_set(-GUMBEL_LN2_HIGH), clamped));
    v16f p = vf_set(terms[GUMBEL_EXP_TERMS - 1]);
    UNROLLED
    for (int i = GUMBEL_EXP_TERMS - 2; i >= 0; i--)
        p = vf_fma(p, f, vf_set(terms[i]));
    p = vf_add(vf_fma(vf_mul(f, f), p, f), vf_set(1.0f));
    return vf_of_bits(vu_add(vu_of_bits(p), vu_shift_left(vu_of_bits(shifted), 23)));
}

/* None is NaN or +inf. */
LANES int all_count(const v16f z[4])
{
    v16f infinity = vf_set(INFINITY);
    return vm_all(vm_and(vm_and(vf_less(z[0], infinity), vf_less(z[1], infinity)),
                         vm_and(vf_less(z[2], infinity), vf_less(z[3], infinity))));
}

LANES void add_mass(gumbel_summary *s, const v16f z[4], float largest)
{
    v16f m = vf_set(largest);
    v16f low = vf_add(lanes_exp(vf_sub(z[0], m)), lanes_exp(vf_sub(z[1], m)));
    v16f high = vf_add(lanes_exp(vf_sub(z[2], m)), lanes_exp(vf_sub(z[3], m)));
    s->max_z = largest > s->max_z ? largest : s->max_z;
    gumbel_mass_add_block(s, largest, vf_sum(vf_add(low, high)));
}

static void draw(const float *z, const cpu_draw *d)
{
    for (int block = 0; block < d->blocks; block++, z += GUMBEL_BLOCK) {
        uint32_t token = d->token + (uint32_t)(block * GUMBEL_BLOCK);
        if (d->with_mass || d->row->greedy) {
            v16f part[4] = {vf_load(z), vf_load(z + 16), vf_load(z + 32), vf_load(z + 48)};
            v16f high = vf_max(vf_max(part[0], part[1]), vf_max(part[2], part[3]));
            if (__builtin_expect(!all_count(part), 0)) {
                cpu_flag_block(d->summaries, z);
                continue;
            }
            float largest = vf_largest(high);
            if (largest == -INFINITY)
                continue;
            if (d->with_mass)
                add_mass(d->summaries, part, largest);
            if (d->row->greedy) {
                argmax_block(d->summaries, z, largest, token);
                continue;
            }
        }
        for (int s = 0; s < d->num_samples; s++)
            if (d->noise)
                draw_given_block(d, s, z, block * GUMBEL_BLOCK);
            else
                draw_block(d, s, z, token);
    }
}

#endif
