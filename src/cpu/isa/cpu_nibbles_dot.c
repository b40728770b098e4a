/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Sums of a screen of nibbles by sdot (AArch64 dot product). Sixteen bytes of a line hold 32
 *        columns of one token. Bytes q + 128 are turned into signed q, and the sums start at 0;
 *        high nibbles are not signed, and their sums have the start values.
 * COST   One instruction for each 16 columns and plane, and five to unpack 32 columns.
 */
#include "cpu/lanes/nibble_sums.h"

#include <arm_neon.h>

/* Prefetch distance of a stream, in bytes. */
#define AHEAD 1024

/* The values of columns 0..15 and 16..31 of a row; `both` is a constant. */
INLINED void unpack_row(const uint8_t *copy, const uint8_t *low, int both, int8x16_t x[2])
{
    const uint8x16_t flip = vdupq_n_u8(128), mask = vdupq_n_u8(15);
    uint8x16_t high = vld1q_u8(copy);
    if (both) {
        uint8x16_t rest = vld1q_u8(low);
        x[0] = vreinterpretq_s8_u8(veorq_u8(vsliq_n_u8(rest, high, 4), flip));
        x[1] = vreinterpretq_s8_u8(veorq_u8(vsriq_n_u8(high, rest, 4), flip));
    } else {
        x[0] = vreinterpretq_s8_u8(vandq_u8(high, mask));
        x[1] = vreinterpretq_s8_u8(vshrq_n_u8(high, 4));
    }
}

/* `lines`, at most 4, and `both` are constants of each instance. */
INLINED void sum_panel(const cpu_screen_product *p, int lines, int both)
{
    for (int first = 0; first < GUMBEL_BLOCK; first += 4) {
        /* Tokens first .. first + 3: one of each stream. */
        int32x4_t sum[4][4];
        const int8_t *plane = p->planes;
        UNROLLED
        for (int g = 0; g < 4; g++) {
            UNROLLED
            for (int b = 0; b < lines; b++)
                sum[g][b] = vdupq_n_s32(0);
        }
        for (int64_t k = 0; k < p->columns; k += 32, plane += k % 64 ? 32 : 64 * lines - 32) {
            UNROLLED
            for (int g = 0; g < 4; g++) {
                int8x16_t x[2];
                const uint8_t *high = p->copy + cpu_find_high_nibbles(first + g, 8 * p->columns) +
                                      k / 32 * CPU_NIBBLE_LINE;
                const uint8_t *low = NULL;
                __builtin_prefetch(high + AHEAD);
                if (both) {
                    low = p->low + cpu_find_low_nibbles(first + g, 8 * p->columns) + k / 2;
                    __builtin_prefetch(low + AHEAD);
                }
                unpack_row(high, low, both, x);
                UNROLLED
                for (int b = 0; b < lines; b++) {
                    sum[g][b] = vdotq_s32(sum[g][b], x[0], vld1q_s8(plane + 64 * b));
                    sum[g][b] = vdotq_s32(sum[g][b], x[1], vld1q_s8(plane + 64 * b + 16));
                }
            }
        }
        UNROLLED
        for (int g = 0; g < 4; g++) {
            UNROLLED
            for (int b = 0; b < lines; b++)
                p->sums[(first / 16 * lines + b) * 16 + first % 16 + g] =
                    vaddvq_s32(sum[g][b]) + (both ? 0 : p->start[b]);
        }
    }
}

DEFINE_NIBBLE_SUM(high, 0, 1)
DEFINE_NIBBLE_SUM(high, 0, 2)
DEFINE_NIBBLE_SUM(high, 0, 3)
DEFINE_NIBBLE_SUM(high, 0, 4)
DEFINE_NIBBLE_SUM(both, 1, 2)
DEFINE_NIBBLE_SUM(both, 1, 4)

static void sum_products(const cpu_screen_product *p)
{
    static void (*const kernels[2][5])(const cpu_screen_product *) = {
        {NULL, sum_high_1, sum_high_2, sum_high_3, sum_high_4},
        {NULL, NULL, sum_both_2, NULL, sum_both_4}};
    kernels[p->low != NULL][p->lines](p);
}

const cpu_screen_kernel cpu_nibbles_dot = {.name = "dot, nibbles",
                                           .plane = 256,
                                           .panel = 2,
                                           .batch_max = 8,
                                           .sum_products = sum_products,
                                           .sum_token = cpu_sum_token_plain};
