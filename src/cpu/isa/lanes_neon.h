/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen lanes on AArch64 Advanced SIMD, as four quarters of four (contract: cpu/README.md).
 */
#ifndef GUMBEL_CPU_LANES_H
#define GUMBEL_CPU_LANES_H

#include "cpu/lanes/cpu_unroll.h"

#include <arm_neon.h>
#include <stdint.h>

typedef float32x4x4_t v16f;
typedef uint32x4x4_t v16u;
typedef uint32x4x4_t v16m;

#define LANES INLINED
/* Evaluates an expression of the quarter number q for the four quarters. */
#define QUARTERS(type, expression)                                                                 \
    type result;                                                                                   \
    UNROLLED                                                                                       \
    for (int q = 0; q < 4; q++)                                                                    \
        result.val[q] = (expression);                                                              \
    return result

LANES v16f vf_load(const void *p) { QUARTERS(v16f, vld1q_f32((const float *)p + 4 * q)); }
LANES v16u vu_load(const void *p)
{
    QUARTERS(v16u, vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * q)));
}
LANES void vf_store(float *p, v16f a)
{
    for (int q = 0; q < 4; q++)
        vst1q_f32(p + 4 * q, a.val[q]);
}
LANES void vu_store(uint32_t *p, v16u a)
{
    for (int q = 0; q < 4; q++)
        vst1q_u32(p + 4 * q, a.val[q]);
}
LANES v16f vf_load_half(const uint16_t *p)
{
    QUARTERS(v16f, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * q))));
}
LANES v16f vf_load_brain(const uint16_t *p)
{
    QUARTERS(v16f, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * q), 16)));
}
LANES void vf_store_half(uint16_t *p, v16f a)
{
    for (int q = 0; q < 4; q++)
        vst1_u16(p + 4 * q, vreinterpret_u16_f16(vcvt_f16_f32(a.val[q])));
}
/* The low 16 bits of each lane, which is below 2^16. */
LANES void vu_store_low(uint16_t *p, v16u a)
{
    for (int q = 0; q < 4; q++)
        vst1_u16(p + 4 * q, vmovn_u32(a.val[q]));
}
/* Loads are never folded here; see lanes_avx512.h. */
LANES v16f vf_hold(v16f a) { return a; }
LANES v16f vf_set(float x) { QUARTERS(v16f, vdupq_n_f32(x)); }
LANES v16u vu_set(uint32_t x) { QUARTERS(v16u, vdupq_n_u32(x)); }
LANES v16f vf_of_bits(v16u a) { QUARTERS(v16f, vreinterpretq_f32_u32(a.val[q])); }
LANES v16u vu_of_bits(v16f a) { QUARTERS(v16u, vreinterpretq_u32_f32(a.val[q])); }

LANES v16f vf_add(v16f a, v16f b) { QUARTERS(v16f, vaddq_f32(a.val[q], b.val[q])); }
LANES v16f vf_sub(v16f a, v16f b) { QUARTERS(v16f, vsubq_f32(a.val[q], b.val[q])); }
LANES v16f vf_mul(v16f a, v16f b) { QUARTERS(v16f, vmulq_f32(a.val[q], b.val[q])); }
LANES v16f vf_div(v16f a, v16f b) { QUARTERS(v16f, vdivq_f32(a.val[q], b.val[q])); }
LANES v16f vf_fma(v16f a, v16f b, v16f c)
{
    QUARTERS(v16f, vfmaq_f32(c.val[q], a.val[q], b.val[q]));
}
LANES v16f vf_max(v16f a, v16f b) { QUARTERS(v16f, vmaxq_f32(a.val[q], b.val[q])); }
LANES v16m vf_less(v16f a, v16f b) { QUARTERS(v16m, vcltq_f32(a.val[q], b.val[q])); }
LANES v16f vf_select(v16m m, v16f yes, v16f no)
{
    QUARTERS(v16f, vbslq_f32(m.val[q], yes.val[q], no.val[q]));
}
/* The leading WORD_BITS bits of a word as a float. */
#define WORD_BITS 32
LANES v16f vf_of_word(v16u r) { QUARTERS(v16f, vcvtq_f32_u32(r.val[q])); }
LANES v16f vf_of_int(v16u a) { QUARTERS(v16f, vcvtq_f32_s32(vreinterpretq_s32_u32(a.val[q]))); }
LANES v16u vu_of_float(v16f a) { QUARTERS(v16u, vreinterpretq_u32_s32(vcvtnq_s32_f32(a.val[q]))); }
LANES v16u vu_truncate(v16f a) { QUARTERS(v16u, vreinterpretq_u32_s32(vcvtq_s32_f32(a.val[q]))); }

LANES v16f vf_gather(const float *p, v16u i)
{
    uint32_t places[16];
    float values[16];
    vu_store(places, i);
    for (int j = 0; j < 16; j++)
        values[j] = p[places[j]];
    return vf_load(values);
}
/* Interleaves the words of a and b: lower lanes to a, upper lanes to b. */
LANES void vu_zip(v16u *a, v16u *b)
{
    v16u x = *a, y = *b;
    for (int q = 0; q < 4; q++) {
        v16u *to = q < 2 ? a : b;
        to->val[2 * q % 4] = vzip1q_u32(x.val[q], y.val[q]);
        to->val[2 * q % 4 + 1] = vzip2q_u32(x.val[q], y.val[q]);
    }
}
/* Stores the lanes whose bits are set, contiguously; up to 16 words from `to` on are
 * overwritten. */
LANES void vu_compress_store(uint32_t *to, v16u a, uint32_t bits)
{
    uint32_t all[16];
    vu_store(all, a);
    for (; bits; bits &= bits - 1)
        *to++ = all[__builtin_ctz(bits)];
}
LANES v16u vu_min(v16u a, v16u b) { QUARTERS(v16u, vminq_u32(a.val[q], b.val[q])); }
LANES v16u vu_add(v16u a, v16u b) { QUARTERS(v16u, vaddq_u32(a.val[q], b.val[q])); }
LANES v16u vu_and(v16u a, v16u b) { QUARTERS(v16u, vandq_u32(a.val[q], b.val[q])); }
LANES v16u vu_xor3(v16u a, v16u b, v16u c)
{
    QUARTERS(v16u, veorq_u32(veorq_u32(a.val[q], b.val[q]), c.val[q]));
}
LANES v16u vu_shift_left(v16u a, int n) { QUARTERS(v16u, vshlq_u32(a.val[q], vdupq_n_s32(n))); }
LANES v16u vu_shift_right(v16u a, int n) { QUARTERS(v16u, vshlq_u32(a.val[q], vdupq_n_s32(-n))); }

LANES v16m vm_and(v16m a, v16m b) { return vu_and(a, b); }
LANES uint32_t vm_bits(v16m m)
{
    const uint32x4_t weights = {1, 2, 4, 8};
    uint32_t bits = 0;
    for (int q = 0; q < 4; q++)
        bits |= vaddvq_u32(vandq_u32(m.val[q], weights)) << (4 * q);
    return bits;
}
LANES int vm_all(v16m m)
{
    uint32x4_t low = vandq_u32(m.val[0], m.val[1]), high = vandq_u32(m.val[2], m.val[3]);
    return vminvq_u32(vandq_u32(low, high)) != 0;
}

/* High and low halves of the 64-bit products a[i] * b; b is equal in all lanes. */
LANES void vu_multiply_wide(v16u a, v16u b, v16u *high, v16u *low)
{
    for (int q = 0; q < 4; q++) {
        uint32x4_t x =
            vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a.val[q]), vget_low_u32(b.val[q])));
        uint32x4_t y = vreinterpretq_u32_u64(vmull_high_u32(a.val[q], b.val[q]));
        low->val[q] = vuzp1q_u32(x, y);
        high->val[q] = vuzp2q_u32(x, y);
    }
}

/* Adds the sixteen words to eight 64-bit sums; vu_widen_total() adds these up. */
LANES v16u vu_widen_add(v16u sums, v16u a)
{
    QUARTERS(v16u,
             vreinterpretq_u32_u64(vpadalq_u32(vreinterpretq_u64_u32(sums.val[q]), a.val[q])));
}
/* Eight 64-bit sums of two products each, modulo 2^64: of all sixteen pairs of words. */
LANES v16u vu_multiply_pairs(v16u a, v16u b)
{
    QUARTERS(v16u,
             vreinterpretq_u32_u64(vmlal_high_u32(
                 vmull_u32(vget_low_u32(a.val[q]), vget_low_u32(b.val[q])), a.val[q], b.val[q])));
}
/* Adds the upper and the lower words of eight 64-bit values to eight 64-bit sums each. */
LANES void vu_add_halves(v16u *high, v16u *low, v16u wide)
{
    for (int q = 0; q < 4; q++) {
        uint64x2_t w = vreinterpretq_u64_u32(wide.val[q]);
        uint64x2_t h = vsraq_n_u64(vreinterpretq_u64_u32(high->val[q]), w, 32);
        uint64x2_t l = vaddw_u32(vreinterpretq_u64_u32(low->val[q]), vmovn_u64(w));
        high->val[q] = vreinterpretq_u32_u64(h);
        low->val[q] = vreinterpretq_u32_u64(l);
    }
}
LANES uint64_t vu_widen_total(v16u sums)
{
    uint64_t total = 0;
    for (int q = 0; q < 4; q++)
        total += vaddvq_u64(vreinterpretq_u64_u32(sums.val[q]));
    return total;
}

/* Transposes the 4 x 4 words in each quarter: w[i] quarter q word j <-> w[j] quarter q word i. */
LANES void vu_transpose(v16u w[4])
{
    for (int q = 0; q < 4; q++) {
        uint32x4_t a = vtrn1q_u32(w[0].val[q], w[1].val[q]),
                   b = vtrn2q_u32(w[0].val[q], w[1].val[q]);
        uint32x4_t c = vtrn1q_u32(w[2].val[q], w[3].val[q]),
                   d = vtrn2q_u32(w[2].val[q], w[3].val[q]);
        w[0].val[q] = vcombine_u32(vget_low_u32(a), vget_low_u32(c));
        w[1].val[q] = vcombine_u32(vget_low_u32(b), vget_low_u32(d));
        w[2].val[q] = vcombine_u32(vget_high_u32(a), vget_high_u32(c));
        w[3].val[q] = vcombine_u32(vget_high_u32(b), vget_high_u32(d));
    }
}

/* Lane j plus j + 8, then plus j + 4: the first two steps of vf_sum(). */
LANES float32x4_t quarter_sum(v16f a)
{
    return vaddq_f32(vaddq_f32(a.val[0], a.val[2]), vaddq_f32(a.val[1], a.val[3]));
}

/* Sum of the lanes in the order of docs/maths.md: lane j with j + 8, j + 4, j + 2, j + 1. */
LANES float vf_sum(v16f a)
{
    float32x4_t c = quarter_sum(a);
    float32x2_t d = vadd_f32(vget_low_f32(c), vget_high_f32(c));
    return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}

LANES float vf_largest(v16f a)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.val[0], a.val[1]), vmaxq_f32(a.val[2], a.val[3])));
}

/* Sixteen vf_sum()s: lane i of the result is the sum of the 16 floats at rows + 16 * i. */
LANES v16f vf_sums(const float *rows)
{
    v16f sums;
    for (int i = 0; i < 4; i++) {
        v16u w;
        for (int j = 0; j < 4; j++)
            w.val[j] = vreinterpretq_u32_f32(quarter_sum(vf_load(rows + 64 * i + 16 * j)));
        v16u quads[4] = {{{w.val[0]}}, {{w.val[1]}}, {{w.val[2]}}, {{w.val[3]}}};
        vu_transpose(quads);
        float32x4_t a = vreinterpretq_f32_u32(quads[0].val[0]),
                    b = vreinterpretq_f32_u32(quads[1].val[0]);
        float32x4_t c = vreinterpretq_f32_u32(quads[2].val[0]),
                    d = vreinterpretq_f32_u32(quads[3].val[0]);
        sums.val[i] = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
    }
    return sums;
}

#endif
