/* SPDX-License-Identifier: Apache-2.0
 *
 * The integer product of a screen: bytes of 64 rows of weights with both planes of a panel of
 * hidden states. Sums of integers are exact in any order, so that each instruction may do it its
 * own way.
 *
 * A panel of n hidden states holds, for every 64 columns, n lines of 64 of their high planes and
 * then n of their low ones. Bytes hold q + 128; the sums start at -128 times those of the planes.
 */
#ifndef GUMBEL_CPU_SCREEN_SUMS_H
#define GUMBEL_CPU_SCREEN_SUMS_H

#include "cpu/cpu_kernels.h"

/* The most hidden states that a panel holds. */
#define CPU_SCREEN_PANEL_MOST 16
/* Sums of 64 tokens and a panel. */
#define CPU_SCREEN_SUMS (4 * 2 * CPU_SCREEN_PANEL_MOST * 16)

typedef struct cpu_screen_product {
    const uint8_t *copy;  /* of the block of 64 rows */
    int64_t columns;      /* a multiple of 64 */
    const int8_t *planes; /* the panel */
    int rows;             /* of the panel: n */
    const int32_t *start; /* [2 n] high, then low */
    int32_t *sums;        /* [4][2 n][16]: by 16 tokens, then high, then low; 64-byte aligned */
} cpu_screen_product;

typedef struct cpu_screen_sums {
    const char *name;
    int plane;          /* 256; or 128 where planes of 8 bits would not be exact */
    int panel;          /* hidden states a panel */
    int64_t batch_most; /* rows of a call that is faster by it than by the full pass */
    void (*sums)(const cpu_screen_product *product);
} cpu_screen_sums;

extern const cpu_screen_sums cpu_screen_plain;
extern const cpu_screen_sums cpu_screen_avx2;
extern const cpu_screen_sums cpu_screen_vnni;
extern const cpu_screen_sums cpu_screen_amx;
extern const cpu_screen_sums cpu_screen_dot;

#endif
