/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of the Hopper kernel that draws and computes statistics of rows: read by C and by
 * CUDA.
 */
#ifndef GUMBEL_CUDA_STATISTICS_PARAMS_H
#define GUMBEL_CUDA_STATISTICS_PARAMS_H

#include "cuda/common/cuda_params.h"

/* Most tokens of output.top_ids that the kernel finds. */
#define CUDA_STATISTICS_TOP_MAX 2

/* Statistics of a row's tokens in one CTA, beside its summary. */
typedef struct cuda_row_statistics {
    double sum, weighted; /* sum of e and of e (z - reference), where e is exp(z - reference) */
    float reference;      /* -inf: no token */
    float top_z[CUDA_STATISTICS_TOP_MAX]; /* the largest z, then lower ids first; -inf: none */
    int32_t top_id[CUDA_STATISTICS_TOP_MAX];
    int32_t reserved[3];
} cuda_row_statistics;

typedef struct cuda_statistics_params {
    cuda_params call;
    cuda_row_statistics *statistics; /* [splits][B] */
} cuda_statistics_params;

#endif
