/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/cpu_screen_kernel.h"

/* The byte q + 128 of a column; without low nibbles the high one. */
static int join_nibbles(const uint8_t *high, const uint8_t *low, int64_t column)
{
    int shift = (int)(column % 32) / 16 * 4;
    int upper = high[column / 32 * CPU_NIBBLE_LINE + column % 16] >> shift & 15;
    if (!low)
        return upper;
    return upper << 4 | (low[column / 32 * CPU_NIBBLE_ROW + column % 16] >> shift & 15);
}

/* Sums one row of the block with all planes; `out` is its place in the sums. */
static void sum_row_products(const cpu_screen_product *p, int row, int32_t *out)
{
    const int n = p->lines;
    const uint8_t *high = p->copy + cpu_find_high_nibbles(row, 8 * p->columns);
    const uint8_t *low = p->low ? p->low + cpu_find_low_nibbles(row, 8 * p->columns) : NULL;
    for (int plane = 0; plane < n; plane++) {
        int32_t sum = p->start[plane];
        for (int64_t k = 0; k < p->columns; k++)
            sum += join_nibbles(high, low, k) * p->planes[k / 64 * 64 * n + plane * 64 + k % 64];
        out[plane * 16] = sum;
    }
}

static void sum_products(const cpu_screen_product *p)
{
    for (int row = 0; row < GUMBEL_BLOCK; row++)
        sum_row_products(p, row, p->sums + row / 16 * p->lines * 16 + row % 16);
}

int32_t cpu_sum_token_plain(const cpu_token_product *p)
{
    const uint8_t *low = p->low;
    int32_t sum = 0;
    for (int64_t k = 0; k < p->columns; k += 32, low += CPU_NIBBLE_ROW) {
        const int8_t *plane = p->plane + k / 64 * p->stride + k % 64;
        for (int i = 0; i < 16; i++)
            sum += (low[i] & 15) * plane[i] + (low[i] >> 4) * plane[i + 16];
    }
    return sum;
}

const cpu_screen_kernel cpu_nibbles_plain = {.name = "plain, nibbles",
                                             .plane = 256,
                                             .panel = 8,
                                             .batch_max = 64,
                                             .sum_products = sum_products,
                                             .sum_token = cpu_sum_token_plain};
