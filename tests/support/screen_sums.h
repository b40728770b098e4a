/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the integer products of screens with those of plain C.
 */
#ifndef TESTS_SCREEN_SUMS_H
#define TESTS_SCREEN_SUMS_H

#include "cpu/cpu_screen_kernel.h"
#include "outcome.h"

#include <stdlib.h>
#include <string.h>

/* Fills `planes` of `rows` hidden states with random values, or with the largest ones of either
 * sign. */
static inline void fill_planes(int8_t *planes, int rows, int64_t columns, int plane, int largest)
{
    uint64_t random = (uint64_t)columns;
    for (int64_t i = 0; i < 2 * rows * columns; i++) {
        int h = (int)random_below(&random, (uint32_t)plane) - plane / 2;
        if (largest)
            h = i / 64 % (2 * rows) % 2 ? -plane / 2 : plane / 2 - 1;
        planes[i] = (int8_t)h;
    }
}

/* Whether 16 times the sums of the high nibbles and sum_token() make up the sums of the bytes, of
 * each token and line of a product. */
static inline int is_each_token_equal(const cpu_screen_kernel *kernel, const cpu_screen_product *p,
                                      const int32_t *high_sums)
{
    const int lines = p->lines;
    for (int token = 0; token < 64; token++)
        for (int line = 0; line < lines; line++) {
            const int at = (token / 16 * lines + line) * 16 + token % 16;
            const cpu_token_product one = {p->low + cpu_find_low_nibbles(token, 8 * p->columns),
                                           p->columns, p->planes + 64 * line, 64 * lines};
            const int64_t high = (int64_t)high_sums[at] - p->start[line];
            if (16 * high + kernel->sum_token(&one) != (int64_t)p->sums[at] - p->start[line])
                return 0;
        }
    return 1;
}

/* Whether a kernel's sums of a block and a panel of `rows` hidden states equal those of `plain`, on
 * random bytes, or on the largest ones. A kernel of nibbles is compared with and without the low
 * nibbles, and token by token. */
static inline int is_product_equal(const cpu_screen_kernel *kernel, const cpu_screen_kernel *plain,
                                   int rows, int64_t columns, int largest)
{
    static int32_t own[CPU_SCREEN_SUMS] __attribute__((aligned(64)));
    static int32_t expected[CPU_SCREEN_SUMS] __attribute__((aligned(64)));
    static int32_t high_sums[CPU_SCREEN_SUMS];
    const size_t bytes = (size_t)(4 * 2 * rows * 16) * sizeof *own;
    int32_t start[2 * CPU_SCREEN_PANEL_MAX] = {0};
    uint64_t random = (uint64_t)columns + 1;
    int8_t *planes = make_zeroed((size_t)(2 * rows * columns), 1);
    uint8_t *copy = make_zeroed((size_t)(64 * columns), 1);
    int equal = 1;
    for (int64_t i = 0; i < 64 * columns; i++)
        copy[i] = largest ? 255 : (uint8_t)random_below(&random, 256);
    fill_planes(planes, rows, columns, kernel->plane, largest);
    for (int64_t i = 0; i < 2 * rows * columns; i++)
        start[i / 64 % (2 * rows)] -= 128 * planes[i];
    for (int both = 0; both <= (kernel->sum_token != NULL); both++) {
        cpu_screen_product call = {.copy = copy,
                                   .low = both ? copy + 32 * columns : NULL,
                                   .columns = columns,
                                   .planes = planes,
                                   .rows = rows,
                                   .lines = 2 * rows,
                                   .start = start,
                                   .sums = own};
        kernel->sum_products(&call);
        equal &= !both || is_each_token_equal(kernel, &call, high_sums);
        memcpy(high_sums, own, sizeof own);
        call.sums = expected;
        plain->sum_products(&call);
        equal &= memcmp(own, expected, bytes) == 0;
    }
    /* A panel of one line less, which kernels of nibbles take without low nibbles. */
    if (kernel->sum_token) {
        cpu_screen_product call = {.copy = copy,
                                   .columns = columns,
                                   .planes = planes,
                                   .lines = 2 * rows - 1,
                                   .start = start,
                                   .sums = own};
        kernel->sum_products(&call);
        call.sums = expected;
        plain->sum_products(&call);
        equal &= memcmp(own, expected, bytes / (size_t)(2 * rows) * (size_t)call.lines) == 0;
    }
    free(planes);
    free(copy);
    return equal;
}

#endif
