/* SPDX-License-Identifier: Apache-2.0
 *
 * Instances of the integer products of a screen of nibbles. The kernel defines
 * sum_panel(product, lines, both): the lines of its panel, at most twice its hidden states, and
 * whether low nibbles are read, which become constants.
 */
#ifndef GUMBEL_CPU_NIBBLE_SUMS_H
#define GUMBEL_CPU_NIBBLE_SUMS_H

#include "cpu/cpu_screen_kernel.h"
#include "cpu/lanes/cpu_unroll.h"

#define DEFINE_NIBBLE_SUM(half, both, lines)                                                       \
    NOT_INLINED void sum_##half##_##lines(const cpu_screen_product *p)                             \
    {                                                                                              \
        sum_panel(p, lines, both);                                                                 \
    }

/* sum_products() with panels of four hidden states. Both halves have two lines for each. */
#define DEFINE_NIBBLE_SUMS_OF_FOUR                                                                 \
    DEFINE_NIBBLE_SUM(high, 0, 1)                                                                  \
    DEFINE_NIBBLE_SUM(high, 0, 2)                                                                  \
    DEFINE_NIBBLE_SUM(high, 0, 3)                                                                  \
    DEFINE_NIBBLE_SUM(high, 0, 4)                                                                  \
    DEFINE_NIBBLE_SUM(high, 0, 5)                                                                  \
    DEFINE_NIBBLE_SUM(high, 0, 6)                                                                  \
    DEFINE_NIBBLE_SUM(high, 0, 7)                                                                  \
    DEFINE_NIBBLE_SUM(high, 0, 8)                                                                  \
    DEFINE_NIBBLE_SUM(both, 1, 2)                                                                  \
    DEFINE_NIBBLE_SUM(both, 1, 4)                                                                  \
    DEFINE_NIBBLE_SUM(both, 1, 6)                                                                  \
    DEFINE_NIBBLE_SUM(both, 1, 8)                                                                  \
    static void sum_products(const cpu_screen_product *p)                                          \
    {                                                                                              \
        static void (*const kernels[2][9])(const cpu_screen_product *) = {                         \
            {NULL, sum_high_1, sum_high_2, sum_high_3, sum_high_4, sum_high_5, sum_high_6,         \
             sum_high_7, sum_high_8},                                                              \
            {NULL, NULL, sum_both_2, NULL, sum_both_4, NULL, sum_both_6, NULL, sum_both_8}};       \
        kernels[p->low != NULL][p->lines](p);                                                      \
    }

#endif
