/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/cpu_screen_sums.h"

static void sums(const cpu_screen_product *p)
{
    int n = 2 * p->rows;
    for (int i = 0; i < 4 * n * 16; i++)
        p->sums[i] = p->start[i / 16 % n];
    for (int64_t k = 0; k < p->columns; k++)
        for (int i = 0; i < 4 * n * 16; i++) {
            const uint8_t *tile =
                p->copy + k / 64 * CPU_SCREEN_TILE + i / (16 * n) * 16 * p->columns;
            int8_t h = p->planes[k / 64 * 64 * n + i / 16 % n * 64 + k % 64];
            p->sums[i] += tile[k % 64 / 4 * 64 + i % 16 * 4 + k % 4] * h;
        }
}

const cpu_screen_sums cpu_screen_plain = {
    .name = "plain", .plane = 256, .panel = 8, .batch_most = 64, .sums = sums};
