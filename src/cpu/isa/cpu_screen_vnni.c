/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   a screen's sums by vpdpbusd (AVX-512 VNNI): a line of a copy's tile is four columns of
 *        sixteen tokens, and is multiplied with four broadcast bytes of a plane, so that lanes are
 *        tokens and nothing is summed across.
 * MEMORY  16 tokens are a stream; four of them at once keep memory busy: side by side in one page,
 *        they are read at 11 GB/s instead of 27 on a Zen 4.
 * COST   two instructions a line and hidden state; up to two hidden states the memory's time.
 */
#include "cpu/cpu_screen_kernel.h"
#include "cpu/lanes/cpu_unroll.h"

#include <immintrin.h>

/* How far ahead a stream is fetched. Four at once read fast by themselves, and are told of 512
 * bytes to come; of fewer, more hidden states take time for each line. */
#define AHEAD(groups) ((groups) == 4 ? 512 : 2048)

/* `rows`, at most 8, and `groups` of 16 tokens at a time are constants of each instance. */
static inline __attribute__((always_inline)) void sums_of(const cpu_screen_product *p, int rows,
                                                          int groups)
{
    const int64_t apart = 16 * p->columns;
    for (int first = 0; first < 4; first += groups) {
        __m512i sum[4][16];
        const uint8_t *copy = p->copy + first * apart;
        const int8_t *planes = p->planes;
        UNROLLED
        for (int g = 0; g < groups; g++) {
            UNROLLED
            for (int b = 0; b < 2 * rows; b++)
                sum[g][b] = _mm512_set1_epi32(p->start[b]);
        }
        for (int64_t k = 0; k < p->columns; k += 64) {
            UNROLLED
            for (int line = 0; line < 16; line++) {
                __m512i x[4];
                UNROLLED
                for (int g = 0; g < groups; g++) {
                    const uint8_t *at = copy + g * apart + 64 * line;
                    x[g] = _mm512_loadu_si512(at);
                    /* A single stream to the first-level cache, the others to the second. */
                    if (groups == 1)
                        _mm_prefetch((const char *)at + AHEAD(groups), _MM_HINT_T0);
                    else
                        _mm_prefetch((const char *)at + AHEAD(groups), _MM_HINT_T1);
                }
                UNROLLED
                for (int b = 0; b < 2 * rows; b++) {
                    int32_t four;
                    memcpy(&four, planes + 64 * b + 4 * line, sizeof four);
                    __m512i h = _mm512_set1_epi32(four);
                    UNROLLED
                    for (int g = 0; g < groups; g++)
                        sum[g][b] = _mm512_dpbusd_epi32(sum[g][b], x[g], h);
                }
            }
            copy += CPU_SCREEN_TILE;
            planes += 128 * rows;
        }
        UNROLLED
        for (int g = 0; g < groups; g++) {
            UNROLLED
            for (int b = 0; b < 2 * rows; b++)
                _mm512_storeu_si512(p->sums + ((first + g) * 2 * rows + b) * 16, sum[g][b]);
        }
    }
}

#define SUMS(rows, groups)                                                                         \
    static __attribute__((noinline)) void sums_##rows(const cpu_screen_product *p)                 \
    {                                                                                              \
        sums_of(p, rows, groups);                                                                  \
    }
SUMS(1, 4)
SUMS(2, 4)
SUMS(3, 4)
SUMS(4, 2)
SUMS(5, 2)
SUMS(6, 2)
SUMS(7, 1)
SUMS(8, 1)

static void sums(const cpu_screen_product *p)
{
    static void (*const of_rows[9])(const cpu_screen_product *) = {
        NULL, sums_1, sums_2, sums_3, sums_4, sums_5, sums_6, sums_7, sums_8};
    of_rows[p->rows](p);
}

const cpu_screen_sums cpu_screen_vnni = {
    .name = "vnni", .plane = 256, .panel = 8, .batch_most = 64, .sums = sums};
