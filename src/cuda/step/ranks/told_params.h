/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernel gets by which a rank says the first tokens of its rows, hears those of all
 * others, and draws.
 */
#ifndef GUMBEL_CUDA_TOLD_PARAMS_H
#define GUMBEL_CUDA_TOLD_PARAMS_H

#include "cuda/common/cuda_params.h"

typedef struct cuda_told_params {
    cuda_candidate_params draw;    /* `received` is what this rank says */
    cuda_exchange_params exchange; /* between whom, alone */
} cuda_told_params;

#endif
