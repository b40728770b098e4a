/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the kernels that draw with a screen, make one, or verify one. Read by C and by CUDA.
 *
 * The copy of the weights is an array of tiles: [V / 128][D / 128][row of wgmma][128 columns], in
 * 128-byte swizzle, rows in the order of screen_draw.cu. A tile, 16 KiB, is one bulk copy and an
 * operand of wgmma.
 *
 * A copy of nibbles is two such arrays: of high nibbles n - 8, as two's complements, and of low
 * nibbles m, so that the byte 16 (n - 8) + m is q. A tile is 8 KiB, not swizzled: [row of
 * wgmma][4 parts][4 words][4 bytes]. Byte i of word 2 p + r of part t is column c = 64 p + 16 r +
 * 4 t + i in its low half, and column c + 32 in its high half: the words of a part are those that a
 * thread passes to wgmma in registers.
 */
#ifndef GUMBEL_CUDA_SCREEN_PARAMS_H
#define GUMBEL_CUDA_SCREEN_PARAMS_H

#include "cuda/common/cuda_params.h"
#include "cuda/common/cuda_truncated_params.h"
#include "cuda/policy/screen_policy.h"

typedef struct cuda_screen_params {
    cuda_params call; /* its tag is common to all launches of the call except the full pass */
    const gumbel_screen_header *header;
    const gumbel_screen_block *bounds;
    const float *steps;
    const int32_t *dither; /* [128 * depths]; of nibbles: gumbel_screen_column words */
    const int8_t *copy;
    const int8_t *low_nibbles; /* NULL: a copy of bytes */
    float low_nibbles_norm;    /* gumbel_screen_bound_low_nibbles() */
    int32_t depths;            /* D / 128, rounded up */
    int32_t width;             /* columns of the product */
    int32_t draws;             /* cuda_screen_draws(); a "row" of the kernels is a draw */
    double gamma;
    int8_t *planes; /* [depths][width][128], in the swizzle of the copy */
    gumbel_screen_hidden_error
        *hidden_errors; /* [width / 2]; unit NaN: the full pass must draw this row */
    gumbel_screen_hidden_error *coarse_errors; /* CUDA_SCREEN_NESTED: those of the high nibbles */
    cuda_screen_state *state;
    cuda_screen_entry *entries;        /* [CUDA_SCREEN_GROUPS][CUDA_SCREEN_GROUP_CANDIDATES_MAX] */
    cuda_screen_entry *coarse_entries; /* [CUDA_SCREEN_GROUPS][CUDA_SCREEN_GROUP_COARSE] */
    uint16_t
        *spread_hidden; /* [draws][D] if S > 1: the hidden state of each draw, for the full pass */
    /* Truncated rows only, [B][call.tiles]: a lower bound on the largest logit of each tile; NaN if
     * it is not known yet. */
    float *maxima;
    cuda_screen_interval *listed; /* [B] rows, listed_stride apart: the listed tokens */
    int64_t listed_stride;
    cuda_screen_exact *exact; /* [B][CUDA_SCREEN_EXACT_MAX] */
    int32_t second_pass;      /* 1: score the tokens that the first pass did not score */
} cuda_screen_params;

/* Arguments of the kernel that draws truncated rows, each from its listed tokens. */
typedef struct cuda_screen_rows {
    cuda_truncated_params request; /* its row_states: served, or for a later launch to serve */
    const cuda_screen_state *state;
    const cuda_screen_exact *exact;
    const uint64_t *row_thresholds; /* [B][CUDA_THRESHOLD_WORDS], with the tag of the screen */
    uint64_t tag;
    int32_t *fallback_rows; /* [B]: 1 if the full pass must serve the row */
} cuda_screen_rows;

/* Arguments of the kernels that make or verify a screen. */
typedef struct cuda_screen_build {
    gumbel_tensor weight;
    gumbel_screen_header initial_header; /* without the fields that the kernels compute */
    gumbel_screen_header *header;
    gumbel_screen_block *bounds;
    float *steps;
    int32_t *dither; /* [128 * depths]; of nibbles: gumbel_screen_column words */
    int8_t *copy;
    int8_t *low_nibbles; /* NULL: a copy of bytes */
    int32_t depths;
    /* Of nibbles, in the memory of the copy until it is written: the squares of the norms of the
     * columns' samples [128 * depths], and the bits of the largest one. */
    double *squares;
    unsigned long long *max_square;
    unsigned long long *fault; /* verification only: the first invalid row */
} cuda_screen_build;

/* Dither of some columns, which travels in the arguments of a launch: cuLaunchKernelEx() copies
 * them, so that no memory of the host must outlive the call, and a graph keeps them. */
#define CUDA_SCREEN_DITHER_COUNT 960
typedef struct cuda_screen_dither {
    int32_t *to;
    int32_t values[CUDA_SCREEN_DITHER_COUNT];
    int32_t count;
} cuda_screen_dither;

/* Bytes of the high nibbles; the low ones follow them. */
#define CUDA_SCREEN_HIGH_BYTES(blocks, depths)                                                     \
    ((int64_t)(blocks) * (depths) * (GUMBEL_BLOCK * CUDA_SCREEN_TILE / 2))

/* Results of verification: a valid screen, or the screen of another head. */
#define CUDA_SCREEN_HOLDS    (~0ull)
#define CUDA_SCREEN_IS_OTHER (~0ull - 1)

#endif
