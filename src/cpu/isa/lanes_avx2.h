/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen lanes on AVX2 + FMA + F16C, as two halves of eight (contract: cpu/README.md).
 */
#ifndef GUMBEL_CPU_LANES_H
#define GUMBEL_CPU_LANES_H

#include "cpu/lanes/cpu_unroll.h"

#include <immintrin.h>
#include <stdint.h>

typedef struct {
    __m256 l, h;
} v16f;
typedef struct {
    __m256i l, h;
} v16u;
typedef v16u v16m;

#define LANES INLINED

LANES v16f vf_load(const void *p)
{
    return (v16f){_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)};
}
LANES v16u vu_load(const void *p)
{
    return (v16u){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
LANES void vf_store(float *p, v16f a)
{
    _mm256_storeu_ps(p, a.l);
    _mm256_storeu_ps(p + 8, a.h);
}
LANES void vu_store(uint32_t *p, v16u a)
{
    _mm256_storeu_si256((__m256i *)p, a.l);
    _mm256_storeu_si256((__m256i *)p + 1, a.h);
}
LANES v16f vf_load_half(const uint16_t *p)
{
    return (v16f){_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8)))};
}
LANES __m256 half_load_brain(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
LANES v16f vf_load_brain(const uint16_t *p)
{
    return (v16f){half_load_brain(p), half_load_brain(p + 8)};
}
LANES void vf_store_half(uint16_t *p, v16f a)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(a.l, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(p + 8), _mm256_cvtps_ph(a.h, _MM_FROUND_TO_NEAREST_INT));
}
/* The low 16 bits of each lane, which is below 2^16. */
LANES void vu_store_low(uint16_t *p, v16u a)
{
    __m256i packed = _mm256_packus_epi32(a.l, a.h); /* quarters 0, 2, 1, 3 */
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
/* With sixteen registers, a load folded into each of its uses costs less than a held register. */
LANES v16f vf_hold(v16f a) { return a; }
LANES v16f vf_set(float x) { return (v16f){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LANES v16u vu_set(uint32_t x)
{
    return (v16u){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)};
}
LANES v16f vf_of_bits(v16u a) { return (v16f){_mm256_castsi256_ps(a.l), _mm256_castsi256_ps(a.h)}; }
LANES v16u vu_of_bits(v16f a) { return (v16u){_mm256_castps_si256(a.l), _mm256_castps_si256(a.h)}; }

LANES v16f vf_add(v16f a, v16f b)
{
    return (v16f){_mm256_add_ps(a.l, b.l), _mm256_add_ps(a.h, b.h)};
}
LANES v16f vf_sub(v16f a, v16f b)
{
    return (v16f){_mm256_sub_ps(a.l, b.l), _mm256_sub_ps(a.h, b.h)};
}
LANES v16f vf_mul(v16f a, v16f b)
{
    return (v16f){_mm256_mul_ps(a.l, b.l), _mm256_mul_ps(a.h, b.h)};
}
LANES v16f vf_div(v16f a, v16f b)
{
    return (v16f){_mm256_div_ps(a.l, b.l), _mm256_div_ps(a.h, b.h)};
}
LANES v16f vf_fma(v16f a, v16f b, v16f c)
{
    return (v16f){_mm256_fmadd_ps(a.l, b.l, c.l), _mm256_fmadd_ps(a.h, b.h, c.h)};
}
LANES v16f vf_max(v16f a, v16f b)
{
    return (v16f){_mm256_max_ps(a.l, b.l), _mm256_max_ps(a.h, b.h)};
}
LANES v16m vf_less(v16f a, v16f b)
{
    return (v16m){_mm256_castps_si256(_mm256_cmp_ps(a.l, b.l, _CMP_LT_OQ)),
                  _mm256_castps_si256(_mm256_cmp_ps(a.h, b.h, _CMP_LT_OQ))};
}
LANES v16f vf_select(v16m m, v16f yes, v16f no)
{
    return (v16f){_mm256_blendv_ps(no.l, yes.l, _mm256_castsi256_ps(m.l)),
                  _mm256_blendv_ps(no.h, yes.h, _mm256_castsi256_ps(m.h))};
}
LANES v16f vf_of_int(v16u a) { return (v16f){_mm256_cvtepi32_ps(a.l), _mm256_cvtepi32_ps(a.h)}; }
LANES v16u vu_of_float(v16f a) { return (v16u){_mm256_cvtps_epi32(a.l), _mm256_cvtps_epi32(a.h)}; }
LANES v16u vu_truncate(v16f a)
{
    return (v16u){_mm256_cvttps_epi32(a.l), _mm256_cvttps_epi32(a.h)};
}

LANES v16f vf_gather(const float *p, v16u i)
{
    return (v16f){_mm256_i32gather_ps(p, i.l, 4), _mm256_i32gather_ps(p, i.h, 4)};
}
LANES v16u half_zip(__m256i a, __m256i b)
{
    __m256i low = _mm256_unpacklo_epi32(a, b), high = _mm256_unpackhi_epi32(a, b);
    return (v16u){_mm256_permute2x128_si256(low, high, 0x20),
                  _mm256_permute2x128_si256(low, high, 0x31)};
}
/* Interleaves the words of a and b: lower lanes to a, upper lanes to b. */
LANES void vu_zip(v16u *a, v16u *b)
{
    v16u x = half_zip(a->l, b->l);
    *b = half_zip(a->h, b->h);
    *a = x;
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
LANES v16u vu_min(v16u a, v16u b)
{
    return (v16u){_mm256_min_epu32(a.l, b.l), _mm256_min_epu32(a.h, b.h)};
}
LANES v16u vu_add(v16u a, v16u b)
{
    return (v16u){_mm256_add_epi32(a.l, b.l), _mm256_add_epi32(a.h, b.h)};
}
LANES v16u vu_and(v16u a, v16u b)
{
    return (v16u){_mm256_and_si256(a.l, b.l), _mm256_and_si256(a.h, b.h)};
}
LANES v16u vu_xor(v16u a, v16u b)
{
    return (v16u){_mm256_xor_si256(a.l, b.l), _mm256_xor_si256(a.h, b.h)};
}
LANES v16u vu_xor3(v16u a, v16u b, v16u c) { return vu_xor(vu_xor(a, b), c); }
LANES v16u vu_shift_left(v16u a, int n)
{
    return (v16u){_mm256_slli_epi32(a.l, n), _mm256_slli_epi32(a.h, n)};
}
LANES v16u vu_shift_right(v16u a, int n)
{
    return (v16u){_mm256_srli_epi32(a.l, n), _mm256_srli_epi32(a.h, n)};
}

/* The leading WORD_BITS bits of a word as a float. */
#define WORD_BITS 31
LANES v16f vf_of_word(v16u r) { return vf_of_int(vu_shift_right(r, 1)); }

LANES v16m vm_and(v16m a, v16m b) { return vu_and(a, b); }
LANES uint32_t vm_bits(v16m m)
{
    uint32_t low = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(m.l));
    return low | (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(m.h)) << 8;
}
LANES int vm_all(v16m m) { return vm_bits(m) == 0xffff; }

LANES void half_multiply_wide(__m256i a, __m256i b, __m256i *high, __m256i *low)
{
    __m256i even = _mm256_mul_epu32(a, b);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

/* High and low halves of the 64-bit products a[i] * b; b is equal in all lanes. */
LANES void vu_multiply_wide(v16u a, v16u b, v16u *high, v16u *low)
{
    half_multiply_wide(a.l, b.l, &high->l, &low->l);
    half_multiply_wide(a.h, b.h, &high->h, &low->h);
}

LANES __m256i half_lower_words(__m256i a)
{
    return _mm256_blend_epi32(a, _mm256_setzero_si256(), 0xaa);
}
LANES __m256i half_widen_add(__m256i sums, __m256i a)
{
    sums = _mm256_add_epi64(sums, _mm256_srli_epi64(a, 32));
    return _mm256_add_epi64(sums, half_lower_words(a));
}

/* Adds the sixteen words to eight 64-bit sums; vu_widen_total() adds these up. */
LANES v16u vu_widen_add(v16u sums, v16u a)
{
    return (v16u){half_widen_add(sums.l, a.l), half_widen_add(sums.h, a.h)};
}
LANES __m256i half_multiply_pairs(__m256i a, __m256i b)
{
    return _mm256_add_epi64(_mm256_mul_epu32(a, b),
                            _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32)));
}
/* Eight 64-bit sums of two products each, modulo 2^64: of all sixteen pairs of words. */
LANES v16u vu_multiply_pairs(v16u a, v16u b)
{
    return (v16u){half_multiply_pairs(a.l, b.l), half_multiply_pairs(a.h, b.h)};
}
/* Adds the upper and the lower words of eight 64-bit values to eight 64-bit sums each. */
LANES void vu_add_halves(v16u *high, v16u *low, v16u wide)
{
    high->l = _mm256_add_epi64(high->l, _mm256_srli_epi64(wide.l, 32));
    high->h = _mm256_add_epi64(high->h, _mm256_srli_epi64(wide.h, 32));
    low->l = _mm256_add_epi64(low->l, half_lower_words(wide.l));
    low->h = _mm256_add_epi64(low->h, half_lower_words(wide.h));
}
LANES uint64_t vu_widen_total(v16u sums)
{
    __m256i a = _mm256_add_epi64(sums.l, sums.h);
    __m128i b = _mm_add_epi64(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return (uint64_t)_mm_cvtsi128_si64(b) + (uint64_t)_mm_extract_epi64(b, 1);
}

LANES void half_transpose(__m256i *w0, __m256i *w1, __m256i *w2, __m256i *w3)
{
    __m256i a = _mm256_unpacklo_epi32(*w0, *w1), b = _mm256_unpackhi_epi32(*w0, *w1);
    __m256i c = _mm256_unpacklo_epi32(*w2, *w3), d = _mm256_unpackhi_epi32(*w2, *w3);
    *w0 = _mm256_unpacklo_epi64(a, c);
    *w1 = _mm256_unpackhi_epi64(a, c);
    *w2 = _mm256_unpacklo_epi64(b, d);
    *w3 = _mm256_unpackhi_epi64(b, d);
}

/* Transposes the 4 x 4 words in each quarter: w[i] quarter q word j <-> w[j] quarter q word i. */
LANES void vu_transpose(v16u w[4])
{
    half_transpose(&w[0].l, &w[1].l, &w[2].l, &w[3].l);
    half_transpose(&w[0].h, &w[1].h, &w[2].h, &w[3].h);
}

/* Lane j plus j + 8, then plus j + 4: the first two steps of vf_sum(). */
LANES __m128 quarter_sum(v16f a)
{
    __m256 b = _mm256_add_ps(a.l, a.h);
    return _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
}

/* Sum of the lanes in the order of docs/maths.md: lane j with j + 8, j + 4, j + 2, j + 1. */
LANES float vf_sum(v16f a)
{
    __m128 c = quarter_sum(a);
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

LANES float vf_largest(v16f a)
{
    __m256 b = _mm256_max_ps(a.l, a.h);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

/* Sixteen vf_sum()s: lane i of the result is the sum of the 16 floats at rows + 16 * i. */
LANES v16f vf_sums(const float *rows)
{
    __m128 sums[4];
    UNROLLED
    for (int i = 0; i < 4; i++) {
        __m128 a = quarter_sum(vf_load(rows + 64 * i)),
               b = quarter_sum(vf_load(rows + 64 * i + 16));
        __m128 c = quarter_sum(vf_load(rows + 64 * i + 32)),
               d = quarter_sum(vf_load(rows + 64 * i + 48));
        _MM_TRANSPOSE4_PS(a, b, c, d);
        sums[i] = _mm_add_ps(_mm_add_ps(a, c), _mm_add_ps(b, d));
    }
    return (v16f){_mm256_set_m128(sums[1], sums[0]), _mm256_set_m128(sums[3], sums[2])};
}

#endif
