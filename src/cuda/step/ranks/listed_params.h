/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels get by which a rank lists the first tokens of its rows, says them, hears those of
 * all others, and draws.
 */
#ifndef GUMBEL_CUDA_LISTED_PARAMS_H
#define GUMBEL_CUDA_LISTED_PARAMS_H

#include "core/ranks/peers.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/cuda_request.h"

/* As the status of a row that a rank could not list. */
#define CUDA_ROW_NOT_SELECTED 64

/* A row of which it is not known yet whether it is left. */
#define CUDA_FALLBACK_UNKNOWN (-1)

typedef struct cuda_top64_params {
    /* What is asked of rows of the whole, no edits; the logits are those of the shard that a
     * product has stored, if one has, and blocks, peaks, strips and floors what it left. */
    cuda_request_params request;
    /* What ranks say, each at `stride` words; or this one alone: status, ids and y of each row. */
    const uint32_t *received;
    int64_t stride;
    int32_t ranks;
    uint32_t *said; /* where this one's are written that a launch lists alone */
    int32_t *left; /* [B + 1]: 1 where a row is not told, and 0 */
} cuda_top64_params;

typedef struct cuda_top64_exchange_params {
    cuda_top64_params draw;
    cuda_exchange_params exchange; /* between whom, alone */
} cuda_top64_exchange_params;

#endif
