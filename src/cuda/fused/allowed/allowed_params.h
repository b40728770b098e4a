/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the product of allowed tokens. Read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_ALLOWED_PARAMS_H
#define GUMBEL_CUDA_ALLOWED_PARAMS_H

#include "cuda/common/cuda_params.h"

typedef struct cuda_allowed_params {
    cuda_params call; /* its masks are new_masks, if that is not NULL */
    /* [B, mask_words]: receives the masks of call.problem.transforms.allowed, from which the kernel
     * then reads the tokens; NULL: the masks of the call exist. */
    uint32_t *new_masks;
    int64_t mask_words;
    int64_t mask_tiles; /* of a row: CUDA_HISTORY_TILE tokens each */
} cuda_allowed_params;

#endif
