/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel arguments of a draw from the top-64 candidates of all ranks.
 */
#ifndef GUMBEL_CUDA_LISTED_PARAMS_H
#define GUMBEL_CUDA_LISTED_PARAMS_H

#include "core/ranks/peers.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/cuda_truncated_params.h"

/* Status of a row whose candidates a rank could not select. */
#define CUDA_ROW_NOT_SELECTED 64

/* A row that may still become a fallback row. */
#define CUDA_FALLBACK_UNKNOWN (-1)

typedef struct cuda_top64_params {
    /* Parameters of the rows of the whole vocabulary, without edits. Logits, blocks, block maxima,
     * stored subtiles and thresholds are those of this rank's shard, if a product has stored
     * them. */
    cuda_truncated_params rows;
    /* Candidates of all ranks, `stride` words apart, or of this rank alone: status, ids and y of
     * each row. */
    const uint32_t *received;
    int64_t stride;
    int32_t ranks;
    uint32_t *candidates; /* output of a launch that selects alone */
    int32_t *fallback;    /* [B + 1]: 1 for a fallback row; then a 0 */
} cuda_top64_params;

typedef struct cuda_top64_exchange_params {
    cuda_top64_params draw;
    cuda_exchange_params exchange; /* ranks and buffers; without data */
} cuda_top64_exchange_params;

#endif
