/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/cpu_screen_kernel.h"

/* Sums 16 weight rows, from `copy` on, with one of n planes. */
static void sum_row_products(const cpu_screen_product *p, const uint8_t *copy, int plane, int n,
                             int32_t *out)
{
    for (int row = 0; row < 16; row++)
        out[row] = p->start[plane];
    for (int64_t k = 0; k < p->columns; k++) {
        const uint8_t *bytes = copy + k / 64 * CPU_SCREEN_TILE + k % 64 / 4 * 64 + k % 4;
        const int8_t h = p->planes[k / 64 * 64 * n + plane * 64 + k % 64];
        for (int row = 0; row < 16; row++)
            out[row] += bytes[row * 4] * h;
    }
}

static void sum_products(const cpu_screen_product *p)
{
    const int n = 2 * p->rows;
    for (int tokens = 0; tokens < 4; tokens++)
        for (int plane = 0; plane < n; plane++)
            sum_row_products(p, p->copy + tokens * 16 * p->columns, plane, n,
                             p->sums + (tokens * n + plane) * 16);
}

const cpu_screen_kernel cpu_screen_plain = {
    .name = "plain", .plane = 256, .panel = 8, .batch_max = 64, .sum_products = sum_products};
