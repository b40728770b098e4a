/* SPDX-License-Identifier: Apache-2.0
 *
 * Integer product of a screen: the bytes of 64 weight rows times the two int8 planes of a panel of
 * hidden states. Integer sums are exact in any order, so each instruction set may choose its own.
 *
 * A panel of n hidden states holds, for every 64 columns, n lines of 64 bytes of the high planes
 * and then n lines of the low planes. Screen bytes hold q + 128, so a sum starts at -128 times the
 * sum of its plane.
 *
 * Kernels of nibbles have a copy of two halves (GUMBEL_SCREEN_LAYOUT_NIBBLES). They multiply the
 * bytes of both halves by both planes, or the high nibbles alone by any lines, whose sums start at
 * -8 times those of the lines.
 */
#ifndef GUMBEL_CPU_SCREEN_KERNEL_H
#define GUMBEL_CPU_SCREEN_KERNEL_H

#include "cpu/cpu_kernels.h"

/* Largest number of hidden states of a panel. */
#define CPU_SCREEN_PANEL_MAX 16
/* Sums of 64 tokens and one panel. */
#define CPU_SCREEN_SUMS (4 * 2 * CPU_SCREEN_PANEL_MAX * 16)

typedef struct cpu_screen_product {
    const uint8_t *copy;  /* the block of 64 rows; its high nibbles */
    const uint8_t *low;   /* its low nibbles; NULL: the high nibbles alone, or a kernel of bytes */
    int64_t columns;      /* a multiple of 64 */
    const int8_t *planes; /* the panel */
    int rows;             /* n, hidden states of the panel; kernels of nibbles: unused */
    int lines;            /* kernels of nibbles: 2 n, without `low` any number up to 2 panels */
    const int32_t *start; /* [2 n] start values: high planes, then low planes */
    int32_t *sums;        /* [4][2 n][16]: groups of 16 tokens; high, then low; 64-byte aligned */
} cpu_screen_product;

/* The low nibbles of one row times one plane. */
typedef struct cpu_token_product {
    const uint8_t *low; /* [columns / 2] */
    int64_t columns;
    const int8_t *plane; /* 64 columns, and then at each `stride` bytes */
    int64_t stride;
} cpu_token_product;

typedef struct cpu_screen_kernel {
    const char *name;
    int plane;         /* values of the low plane: 256, or 128 where 8 bits would overflow */
    int panel;         /* largest number of hidden states of a panel */
    int64_t batch_max; /* a larger batch is faster by the full pass */
    void (*sum_products)(const cpu_screen_product *product);
    int32_t (*sum_token)(const cpu_token_product *product); /* kernels of nibbles */
} cpu_screen_kernel;

extern const cpu_screen_kernel cpu_screen_plain;
extern const cpu_screen_kernel cpu_screen_avx2;
extern const cpu_screen_kernel cpu_screen_vnni;
extern const cpu_screen_kernel cpu_screen_amx;
extern const cpu_screen_kernel cpu_screen_dot;

extern const cpu_screen_kernel cpu_nibbles_plain;
extern const cpu_screen_kernel cpu_nibbles_avx2;
extern const cpu_screen_kernel cpu_nibbles_vnni;
extern const cpu_screen_kernel cpu_nibbles_dot;

/* sum_token() in plain C. */
int32_t cpu_sum_token_plain(const cpu_token_product *product);

#endif
