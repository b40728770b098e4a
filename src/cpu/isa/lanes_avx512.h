/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen lanes on AVX-512 F, BW, DQ, VL (contract: cpu/README.md).
 */
#ifndef GUMBEL_CPU_LANES_H
#define GUMBEL_CPU_LANES_H

#include "cpu/lanes/cpu_unroll.h"

#include <immintrin.h>
#include <stdint.h>

typedef __m512 v16f;
typedef __m512i v16u;
typedef __mmask16 v16m;

#define LANES INLINED

LANES v16f vf_load(const void *p) { return _mm512_loadu_ps(p); }
LANES v16u vu_load(const void *p) { return _mm512_loadu_si512(p); }
LANES void vf_store(float *p, v16f a) { _mm512_storeu_ps(p, a); }
LANES void vu_store(uint32_t *p, v16u a) { _mm512_storeu_si512(p, a); }
LANES v16f vf_load_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
LANES v16f vf_load_brain(const uint16_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}
LANES void vf_store_half(uint16_t *p, v16f a)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
/* The low 16 bits of each lane, which is below 2^16. */
LANES void vu_store_low(uint16_t *p, v16u a)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(a));
}
/* Keeps the value in a register: gcc would fold the load into each of its uses, and the load ports
 * would limit. Clang folds fewer loads; forced to hold them, it spills accumulators and takes twice
 * the time. */
LANES v16f vf_hold(v16f a)
{
#if !defined(__clang__)
    __asm__("" : "+v"(a));
#endif
    return a;
}
LANES v16f vf_set(float x) { return _mm512_set1_ps(x); }
LANES v16u vu_set(uint32_t x) { return _mm512_set1_epi32((int)x); }
LANES v16f vf_of_bits(v16u a) { return _mm512_castsi512_ps(a); }
LANES v16u vu_of_bits(v16f a) { return _mm512_castps_si512(a); }

LANES v16f vf_add(v16f a, v16f b) { return _mm512_add_ps(a, b); }
LANES v16f vf_sub(v16f a, v16f b) { return _mm512_sub_ps(a, b); }
LANES v16f vf_mul(v16f a, v16f b) { return _mm512_mul_ps(a, b); }
LANES v16f vf_div(v16f a, v16f b) { return _mm512_div_ps(a, b); }
LANES v16f vf_fma(v16f a, v16f b, v16f c) { return _mm512_fmadd_ps(a, b, c); }
LANES v16f vf_max(v16f a, v16f b) { return _mm512_max_ps(a, b); }
LANES v16m vf_less(v16f a, v16f b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
LANES v16f vf_select(v16m m, v16f yes, v16f no) { return _mm512_mask_blend_ps(m, no, yes); }
/* The leading WORD_BITS bits of a word as a float. */
#define WORD_BITS 32
LANES v16f vf_of_word(v16u r) { return _mm512_cvtepu32_ps(r); }
LANES v16f vf_of_int(v16u a) { return _mm512_cvtepi32_ps(a); }
LANES v16u vu_of_float(v16f a) { return _mm512_cvtps_epi32(a); }
LANES v16u vu_truncate(v16f a) { return _mm512_cvttps_epi32(a); }

LANES v16f vf_gather(const float *p, v16u i) { return _mm512_i32gather_ps(i, p, 4); }
/* Interleaves the words of a and b: lower lanes to a, upper lanes to b. */
LANES void vu_zip(v16u *a, v16u *b)
{
    const v16u low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    v16u x = _mm512_permutex2var_epi32(*a, low, *b);
    *b = _mm512_permutex2var_epi32(*a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), *b);
    *a = x;
}
/* Stores the lanes whose bits are set, contiguously; up to 16 words from `to` on are
 * overwritten. */
LANES void vu_compress_store(uint32_t *to, v16u a, uint32_t bits)
{
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32((v16m)bits, a));
}
LANES v16u vu_min(v16u a, v16u b) { return _mm512_min_epu32(a, b); }
LANES v16u vu_add(v16u a, v16u b) { return _mm512_add_epi32(a, b); }
LANES v16u vu_and(v16u a, v16u b) { return _mm512_and_si512(a, b); }
LANES v16u vu_xor3(v16u a, v16u b, v16u c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
#define vu_shift_left(a, n)  _mm512_slli_epi32(a, n)
#define vu_shift_right(a, n) _mm512_srli_epi32(a, n)

LANES v16m vm_and(v16m a, v16m b) { return a & b; }
LANES uint32_t vm_bits(v16m m) { return m; }
LANES int vm_all(v16m m) { return m == 0xffff; }

/* High and low halves of the 64-bit products a[i] * b; b is equal in all lanes. */
LANES void vu_multiply_wide(v16u a, v16u b, v16u *high, v16u *low)
{
    v16u even = _mm512_mul_epu32(a, b);
    v16u odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
    *low = _mm512_mask_shuffle_epi32(even, 0xaaaa, odd, 0xa0);
    *high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, 0xf5);
}

/* Adds the sixteen words to eight 64-bit sums; vu_widen_total() adds these up. */
LANES v16u vu_widen_add(v16u sums, v16u a)
{
    sums = _mm512_add_epi64(sums, _mm512_srli_epi64(a, 32));
    return _mm512_add_epi64(sums, _mm512_maskz_mov_epi32(0x5555, a));
}
/* Eight 64-bit sums of two products each, modulo 2^64: of all sixteen pairs of words. */
LANES v16u vu_multiply_pairs(v16u a, v16u b)
{
    return _mm512_add_epi64(_mm512_mul_epu32(a, b),
                            _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32)));
}
/* Adds the upper and the lower words of eight 64-bit values to eight 64-bit sums each. */
LANES void vu_add_halves(v16u *high, v16u *low, v16u wide)
{
    *high = _mm512_add_epi64(*high, _mm512_srli_epi64(wide, 32));
    *low = _mm512_add_epi64(*low, _mm512_maskz_mov_epi32(0x5555, wide));
}
LANES uint64_t vu_widen_total(v16u sums) { return (uint64_t)_mm512_reduce_add_epi64(sums); }

/* Transposes the 4 x 4 words in each quarter: w[i] quarter q word j <-> w[j] quarter q word i. */
LANES void vu_transpose(v16u w[4])
{
    v16u a = _mm512_unpacklo_epi32(w[0], w[1]), b = _mm512_unpackhi_epi32(w[0], w[1]);
    v16u c = _mm512_unpacklo_epi32(w[2], w[3]), d = _mm512_unpackhi_epi32(w[2], w[3]);
    w[0] = _mm512_unpacklo_epi64(a, c);
    w[1] = _mm512_unpackhi_epi64(a, c);
    w[2] = _mm512_unpacklo_epi64(b, d);
    w[3] = _mm512_unpackhi_epi64(b, d);
}

/* Sum of the lanes in the order of docs/maths.md: lane j with j + 8, j + 4, j + 2, j + 1. */
LANES float vf_sum(v16f a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

LANES float vf_largest(v16f a)
{
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

/* Sixteen vf_sum()s: lane i of the result is the sum of the 16 floats at rows + 16 * i. Each step
 * adds the upper to the lower half (quarter, pair, ...) of two vectors side by side. */
LANES v16f vf_sums(const float *rows)
{
    v16f a[16];
    UNROLLED
    for (int i = 0; i < 8; i++) {
        v16f x = vf_load(rows + 16 * i), y = vf_load(rows + 16 * (i + 8));
        a[i] = vf_add(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    }
    /* a[i]: quarters x x y y of rows i, i + 8 */
    UNROLLED
    for (int i = 0; i < 4; i++)
        a[i] = vf_add(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88),
                      _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
    /* a[i]: one quarter each of rows i, i + 8, i + 4, i + 12 */
    __m512d p = _mm512_castps_pd(a[0]), q = _mm512_castps_pd(a[1]);
    __m512d r = _mm512_castps_pd(a[2]), s = _mm512_castps_pd(a[3]);
    v16f even = vf_add(_mm512_castpd_ps(_mm512_unpacklo_pd(p, r)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(p, r)));
    v16f odd = vf_add(_mm512_castpd_ps(_mm512_unpacklo_pd(q, s)),
                      _mm512_castpd_ps(_mm512_unpackhi_pd(q, s)));
    /* quarters: rows (0 0 2 2) + {0, 8, 4, 12}; in `odd` with 1 and 3 */
    v16f sums = vf_add(_mm512_shuffle_ps(even, odd, 0x88), _mm512_shuffle_ps(even, odd, 0xdd));
    /* quarter q of sums: rows 0 2 1 3 + {0, 8, 4, 12}[q] */
    const v16u order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_ps(order, sums);
}

#endif
