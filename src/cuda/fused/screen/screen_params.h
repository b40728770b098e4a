/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels of a screened draw are handed, and those that make a screen. Read by C and by
 * CUDA.
 *
 * The copy is laid out in tiles of 128 rows and 128 columns, 16 KiB that are copied as they lie and
 * are an operand of wgmma: [V / 128][D / 128][row of wgmma][128 columns], in 128-byte swizzle, rows
 * as screen_draw.cu has them.
 */
#ifndef GUMBEL_CUDA_SCREEN_PARAMS_H
#define GUMBEL_CUDA_SCREEN_PARAMS_H

#include "cuda/common/cuda_params.h"
#include "cuda/common/cuda_request.h"
#include "cuda/policy/screen_policy.h"

typedef struct cuda_screen_params {
    cuda_params call; /* with the tag of all of the call's launches but the full pass */
    const gumbel_screen_header *header;
    const gumbel_screen_block *bounds;
    const float *steps;
    const int8_t *copy;
    int32_t depths; /* D / 128, rounded up */
    int32_t width;  /* of the product */
    int32_t draws;  /* cuda_screen_draws(), row by row; the kernels' rows are these */
    double gamma;
    int8_t *planes;               /* [depths][width][128], in the swizzle of the copy */
    gumbel_screen_reach *reaches; /* [width / 2]; a NaN unit: the full pass must draw this row */
    cuda_screen_state *state;
    cuda_screen_entry *entries; /* [CUDA_SCREEN_GROUPS][CUDA_SCREEN_GROUP_CANDIDATES_MAX] */
    uint16_t *spread; /* [draws][D], where S > 1: the hidden state of each, for the full pass */
    /* Of rows that are cut. [B][call.tiles]: what the largest logit of each tile is not below; NaN
     * for those that are not known yet. */
    float *peaks;
    cuda_screen_interval *ends; /* [B] rows at ends_stride: the list */
    int64_t ends_stride;
    cuda_screen_exact *exact; /* [B][CUDA_SCREEN_EXACT_MAX] */
    int32_t rest;             /* of scoring: what the first scores leave */
} cuda_screen_params;

/* What the kernel gets that draws rows which are cut, each from its part of the list. */
typedef struct cuda_screen_rows {
    cuda_request_params request; /* row_states: served, or behind the next launch */
    const cuda_screen_state *state;
    const cuda_screen_exact *exact;
    const uint64_t *row_thresholds; /* [B][CUDA_THRESHOLD_WORDS], with the tag of the screen */
    uint64_t tag;
    int32_t *left; /* [B]: 1 where the row is left to the full pass */
} cuda_screen_rows;

/* What the kernels that make a screen, or verify one, are given. */
typedef struct cuda_screen_making {
    gumbel_tensor weight;
    gumbel_screen_header begun; /* without what is found on the way */
    gumbel_screen_header *header;
    gumbel_screen_block *bounds;
    float *steps;
    int8_t *copy;
    int32_t depths;
    unsigned long long *fault; /* only to verify: the first row at fault */
} cuda_screen_making;

/* Of what is verified: nothing found, and a screen that is not of this head. */
#define CUDA_SCREEN_HOLDS    (~0ull)
#define CUDA_SCREEN_IS_OTHER (~0ull - 1)

#endif
