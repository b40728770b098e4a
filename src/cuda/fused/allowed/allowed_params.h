/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the kernels of rows that allow few tokens. Read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_ALLOWED_PARAMS_H
#define GUMBEL_CUDA_ALLOWED_PARAMS_H

#include "cuda/common/cuda_params.h"

/* Of the kernel that stores the logits of allowed tokens. */
typedef struct cuda_allowed_params {
    cuda_params call; /* its masks are new_masks, if that is not NULL */
    /* [B, mask_words]: receives the masks of call.problem.transforms.allowed, from which the kernel
     * then reads the tokens; NULL: the masks of the call exist. */
    uint32_t *new_masks;
    int64_t mask_words;
    int64_t mask_tiles; /* of a row: CUDA_HISTORY_TILE tokens each */
} cuda_allowed_params;

/* Of the kernel that also draws: call.splits CTAs for each group of CUDA_SCREEN_GROUP rows, fewer
 * of which draw if lists are short. */
typedef struct cuda_allowed_draw_params {
    cuda_params call;
    int32_t reads_lists; /* 1: tokens are those of transforms.allowed; 0: of transforms.mask */
} cuda_allowed_draw_params;

#endif
