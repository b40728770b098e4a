/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Sums of a screen by vpdpbusd (AVX-512 VNNI). A line of a tile holds four columns of
 *        sixteen tokens and is multiplied by four broadcast bytes of a plane: lanes are tokens, and
 *        nothing is summed across lanes.
 * MEMORY 16 tokens are one stream; four streams at once keep memory busy. Streams that lie in one
 *        page are read at 11 GB/s instead of 27 on a Zen 4.
 * COST   Two instructions for each line and hidden state; up to two hidden states memory is the
 *        limit. More than four take another pass over the block, which then lies in the
 *        second-level cache: panels of eight, by one stream, take 1.1 times as long at 16 hidden
 *        states.
 */
#include "cpu/cpu_screen_kernel.h"
#include "cpu/lanes/cpu_unroll.h"

#include <immintrin.h>

/* Prefetch distance of a stream, in bytes. Four streams at once are fast by themselves; with two,
 * and more hidden states, each line takes longer. */
#define AHEAD(groups) ((groups) == 4 ? 512 : 2048)

/* `rows`, at most 4, and `groups` of 16 tokens at a time are constants of each instance. */
INLINED void sum_panel(const cpu_screen_product *p, int rows, int groups)
{
    const int64_t group_bytes = 16 * p->columns;
    for (int first = 0; first < 4; first += groups) {
        __m512i sum[4][8];
        const uint8_t *copy = p->copy + first * group_bytes;
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
                    const uint8_t *at = copy + g * group_bytes + 64 * line;
                    x[g] = _mm512_loadu_si512(at);
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

#define DEFINE_SUM(rows, groups)                                                                   \
    NOT_INLINED void sum_rows_##rows(const cpu_screen_product *p) { sum_panel(p, rows, groups); }
DEFINE_SUM(1, 4)
DEFINE_SUM(2, 4)
DEFINE_SUM(3, 4)
DEFINE_SUM(4, 2)

static void sum_products(const cpu_screen_product *p)
{
    static void (*const kernels[5])(const cpu_screen_product *) = {NULL, sum_rows_1, sum_rows_2,
                                                                   sum_rows_3, sum_rows_4};
    kernels[p->rows](p);
}

const cpu_screen_kernel cpu_screen_vnni = {
    .name = "vnni", .plane = 256, .panel = 4, .batch_max = 64, .sum_products = sum_products};
