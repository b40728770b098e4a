/* SPDX-License-Identifier: Apache-2.0
 *
 * Integer product of a screen: the bytes of 64 weight rows times the two int8 planes of a panel of
 * hidden states. Integer sums are exact in any order, so each instruction set may choose its own.
 *
 * A panel of n hidden states holds, for every 64 columns, n lines of 64 bytes of the high planes
 * and then n lines of the low planes. Screen bytes hold q + 128, so a sum starts at -128 times the
 * sum of its plane.
 */
#ifndef GUMBEL_CPU_SCREEN_KERNEL_H
#define GUMBEL_CPU_SCREEN_KERNEL_H

#include "cpu/cpu_kernels.h"

/* Largest number of hidden states of a panel. */
#define CPU_SCREEN_PANEL_MAX 16
/* Sums of 64 tokens and one panel. */
#define CPU_SCREEN_SUMS (4 * 2 * CPU_SCREEN_PANEL_MAX * 16)

typedef struct cpu_screen_product {
    const uint8_t *copy;  /* the block of 64 rows */
    int64_t columns;      /* a multiple of 64 */
    const int8_t *planes; /* the panel */
    int rows;             /* n, hidden states of the panel */
    const int32_t *start; /* [2 n] start values: high planes, then low planes */
    int32_t *sums;        /* [4][2 n][16]: groups of 16 tokens; high, then low; 64-byte aligned */
} cpu_screen_product;

typedef struct cpu_screen_kernel {
    const char *name;
    int plane;         /* values of the low plane: 256, or 128 where 8 bits would overflow */
    int panel;         /* largest number of hidden states of a panel */
    int64_t batch_max; /* a larger batch is faster by the full pass */
    void (*sum_products)(const cpu_screen_product *product);
} cpu_screen_kernel;

extern const cpu_screen_kernel cpu_screen_plain;
extern const cpu_screen_kernel cpu_screen_avx2;
extern const cpu_screen_kernel cpu_screen_vnni;
extern const cpu_screen_kernel cpu_screen_amx;
extern const cpu_screen_kernel cpu_screen_dot;

#endif
