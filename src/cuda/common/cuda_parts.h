/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of the kernels of grouped draws, which draw one of several parts of a vocabulary by
 * their log-masses: read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_PARTS_H
#define GUMBEL_CUDA_PARTS_H

#include "core/problem.h"

/* All pointers are device pointers. */
typedef struct cuda_parts_params {
    gumbel_problem problem;           /* batch and sampling */
    int32_t parts;                    /* number of parts; of a stream: the part's index */
    const float *log_masses;          /* [parts, B] */
    const int32_t *tokens;            /* [parts, B, S] */
    int32_t *drawn, *which;           /* [B, S]; `which`, lse and status may be NULL */
    float *lse;                       /* [B] */
    int32_t *status;                  /* [B] */
    struct gumbel_stream_draw *draws; /* [B, S], of a stream */
} cuda_parts_params;

#endif
