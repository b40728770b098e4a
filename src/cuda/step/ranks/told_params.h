/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels get by which a rank says the first tokens of its rows, hears those of all others,
 * and draws; and what tells of which rows it is to store no more than these.
 */
#ifndef GUMBEL_CUDA_TOLD_PARAMS_H
#define GUMBEL_CUDA_TOLD_PARAMS_H

#include "cuda/common/cuda_params.h"

typedef struct cuda_told_params {
    cuda_candidate_params draw;    /* `received` is what this rank says */
    cuda_exchange_params exchange; /* between whom, alone */
} cuda_told_params;

typedef struct cuda_bound_params {
    gumbel_problem problem; /* of a shard: what rows ask for */
    int with_mass;          /* a log-normaliser, log-probabilities or kept counts are asked for */
    int32_t *bounded;       /* [B]: how many first tokens matter; 0: any token may */
} cuda_bound_params;

#endif
