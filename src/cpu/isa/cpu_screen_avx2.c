/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Sums of a screen by vpmaddubsw (AVX2), which adds two products in 16 bits. Planes of 7
 *        bits keep it exact: 2 * 255 * 64 < 2^15. Lanes are tokens, as in cpu_screen_vnni.c.
 * COST   Three instructions for each half line and plane.
 */
#include "cpu/cpu_screen_kernel.h"
#include "cpu/lanes/cpu_unroll.h"

#include <immintrin.h>

/* Prefetch distance of each stream, in bytes, into the second-level cache. */
#define AHEAD 512

/* `rows`, at most 4, and `halves`, groups of 8 tokens at a time, are constants of each instance. */
INLINED void sum_panel(const cpu_screen_product *p, int rows, int halves)
{
    const __m256i ones = _mm256_set1_epi16(1);
    for (int first = 0; first < 8; first += halves) {
        __m256i sum[4][8];
        const int8_t *planes = p->planes;
        UNROLLED
        for (int g = 0; g < halves; g++) {
            UNROLLED
            for (int b = 0; b < 2 * rows; b++)
                sum[g][b] = _mm256_set1_epi32(p->start[b]);
        }
        for (int64_t k = 0; k < p->columns; k += 64) {
            const uint8_t *copy = p->copy + k / 64 * CPU_SCREEN_TILE;
            UNROLLED
            for (int line = 0; line < 16; line++) {
                __m256i x[4];
                UNROLLED
                for (int g = 0; g < halves; g++) {
                    int half = first + g;
                    const uint8_t *at =
                        copy + half / 2 * 16 * p->columns + 64 * line + half % 2 * 32;
                    x[g] = _mm256_loadu_si256((const void *)at);
                    if (g % 2 == 0)
                        _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T1);
                }
                UNROLLED
                for (int b = 0; b < 2 * rows; b++) {
                    int32_t four;
                    memcpy(&four, planes + 64 * b + 4 * line, sizeof four);
                    __m256i h = _mm256_set1_epi32(four);
                    UNROLLED
                    for (int g = 0; g < halves; g++)
                        sum[g][b] = _mm256_add_epi32(
                            sum[g][b], _mm256_madd_epi16(_mm256_maddubs_epi16(x[g], h), ones));
                }
            }
            planes += 128 * rows;
        }
        UNROLLED
        for (int g = 0; g < halves; g++) {
            int half = first + g;
            UNROLLED
            for (int b = 0; b < 2 * rows; b++)
                _mm256_storeu_si256(
                    (void *)(p->sums + (half / 2 * 2 * rows + b) * 16 + half % 2 * 8), sum[g][b]);
        }
    }
}

#define DEFINE_SUM(rows, halves)                                                                   \
    NOT_INLINED void sum_rows_##rows(const cpu_screen_product *p) { sum_panel(p, rows, halves); }
DEFINE_SUM(1, 4)
DEFINE_SUM(2, 2)
DEFINE_SUM(3, 2)
DEFINE_SUM(4, 1)

static void sum_products(const cpu_screen_product *p)
{
    static void (*const kernels[5])(const cpu_screen_product *) = {NULL, sum_rows_1, sum_rows_2,
                                                                   sum_rows_3, sum_rows_4};
    kernels[p->rows](p);
}

const cpu_screen_kernel cpu_screen_avx2 = {
    .name = "avx2", .plane = 128, .panel = 4, .batch_max = 8, .sum_products = sum_products};
