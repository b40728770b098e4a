/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   a screen's sums by vpmaddubsw (AVX2). It adds two products in 16 bits, which planes of 7
 *        bits keep exact: 2 * 255 * 64 < 2^15. Lanes are tokens, as in cpu_screen_vnni.c.
 * COST   three instructions a half line and plane.
 */
#include "cpu/cpu_screen_kernel.h"
#include "cpu/lanes/cpu_unroll.h"

#include <immintrin.h>

/* How far ahead each stream is fetched, into the second-level cache. */
#define AHEAD 512

/* `rows`, at most 4, and `halves` of 8 tokens at a time are constants of each instance. */
static inline __attribute__((always_inline)) void sums_of(const cpu_screen_product *p, int rows,
                                                          int halves)
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

#define SUMS(rows, halves)                                                                         \
    static __attribute__((noinline)) void sums_##rows(const cpu_screen_product *p)                 \
    {                                                                                              \
        sums_of(p, rows, halves);                                                                  \
    }
SUMS(1, 4)
SUMS(2, 2)
SUMS(3, 2)
SUMS(4, 1)

static void sums(const cpu_screen_product *p)
{
    static void (*const of_rows[5])(const cpu_screen_product *) = {NULL, sums_1, sums_2, sums_3,
                                                                   sums_4};
    of_rows[p->rows](p);
}

const cpu_screen_sums cpu_screen_avx2 = {
    .name = "avx2", .plane = 128, .panel = 4, .batch_most = 8, .sums = sums};
