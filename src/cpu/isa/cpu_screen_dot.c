/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Sums of a screen by sdot (AArch64 dot product). Sixteen bytes hold four columns of four
 *        tokens, and four bytes of a plane are broadcast to all lanes.
 * COST   One instruction for each four tokens, four columns and plane, and one that turns bytes q +
 *        128 into signed q. The sums therefore start at 0, not at -128 times the sums of the
 *        planes.
 */
#include "cpu/cpu_screen_kernel.h"
#include "cpu/lanes/cpu_unroll.h"

#include <arm_neon.h>

/* Prefetch distance of a stream of tiles, in bytes. */
#define AHEAD 1024

/* `rows`, at most 2, is a constant of each instance. */
INLINED void sum_panel(const cpu_screen_product *p, int rows)
{
    const uint8x16_t flip = vdupq_n_u8(128);
    for (int group = 0; group < 4; group++) {
        int32x4_t sum[4][4];
        const int8_t *planes = p->planes;
        UNROLLED
        for (int g = 0; g < 4; g++) {
            UNROLLED
            for (int b = 0; b < 2 * rows; b++)
                sum[g][b] = vdupq_n_s32(0);
        }
        for (int64_t k = 0; k < p->columns; k += 64, planes += 128 * rows) {
            const uint8_t *tile = p->copy + group * 16 * p->columns + k / 64 * CPU_SCREEN_TILE;
            UNROLLED
            for (int quad = 0; quad < 16; quad++) {
                __builtin_prefetch(tile + 64 * quad + AHEAD);
                UNROLLED
                for (int b = 0; b < 2 * rows; b++) {
                    int32_t four;
                    memcpy(&four, planes + 64 * b + 4 * quad, sizeof four);
                    int8x16_t h = vreinterpretq_s8_s32(vdupq_n_s32(four));
                    UNROLLED
                    for (int g = 0; g < 4; g++) {
                        uint8x16_t bytes = vld1q_u8(tile + 64 * quad + 16 * g);
                        int8x16_t q = vreinterpretq_s8_u8(veorq_u8(bytes, flip));
                        sum[g][b] = vdotq_s32(sum[g][b], q, h);
                    }
                }
            }
        }
        UNROLLED
        for (int b = 0; b < 2 * rows; b++) {
            UNROLLED
            for (int g = 0; g < 4; g++)
                vst1q_s32(p->sums + (group * 2 * rows + b) * 16 + 4 * g, sum[g][b]);
        }
    }
}

static void sum_products(const cpu_screen_product *p)
{
    if (p->rows == 1)
        sum_panel(p, 1);
    else
        sum_panel(p, 2);
}

const cpu_screen_kernel cpu_screen_dot = {
    .name = "dot", .plane = 256, .panel = 2, .batch_max = 8, .sum_products = sum_products};
