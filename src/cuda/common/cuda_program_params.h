/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of the kernels that draw rows by their programs: read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_PROGRAM_PARAMS_H
#define GUMBEL_CUDA_PROGRAM_PARAMS_H

#include "cuda/common/cuda_truncated_params.h"

typedef struct cuda_program_params {
    cuda_truncated_params call; /* first, for launches that take it alone */
    /* The rules of call.problem.programs, whose pointer is to host memory. */
    uint8_t rules[GUMBEL_PROGRAMS_MAX * GUMBEL_PROGRAM_LENGTH];
} cuda_program_params;

#endif
