/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host hands to the kernels that draw parts by their log-masses: read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_PARTS_H
#define GUMBEL_CUDA_PARTS_H

#include "core/problem.h"

/* All pointers are device pointers. */
typedef struct cuda_parts_params {
    gumbel_problem problem;           /* batch and sampling */
    int32_t parts;                    /* how many; in a stream its number */
    const float *log_masses;          /* [parts, B] */
    const int32_t *tokens;            /* [parts, B, S] */
    int32_t *drawn, *which;           /* [B, S]; which may be NULL, as may */
    float *lse;                       /* [B] */
    int32_t *status;                  /* [B] */
    struct gumbel_stream_draw *draws; /* [B, S], of a stream */
} cuda_parts_params;

#endif
