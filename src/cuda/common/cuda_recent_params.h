/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of the kernels of recent tokens: read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_RECENT_PARAMS_H
#define GUMBEL_CUDA_RECENT_PARAMS_H

#include "core/recent_row.h"

typedef struct cuda_recent_params {
    gumbel_recent_call call;
    int64_t tiles; /* of the history's vocabulary: CUDA_HISTORY_TILE tokens each; 1 without one */
} cuda_recent_params;

typedef struct cuda_lists_params {
    gumbel_lists_call call;
    int32_t places; /* of a table of ids: a power of two, twice the capacity or more */
} cuda_lists_params;

/* The places of a table for a list of `capacity` ids. */
static inline int32_t cuda_list_places(int64_t capacity)
{
    int32_t places = 2;
    while (places < 2 * capacity)
        places *= 2;
    return places;
}

#endif
