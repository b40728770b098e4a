/* SPDX-License-Identifier: Apache-2.0
 *
 * The two likeliest tokens of a row, for calls with statistics: by larger z, then by lower id.
 * Places without a token have z = -inf and id -1.
 */
#ifndef GUMBEL_CUDA_TOP_TOKENS_CUH
#define GUMBEL_CUDA_TOP_TOKENS_CUH

#include "cuda/common/cuda_statistics_params.h"

/* Whether token `id` comes before token `other`. A place without a token comes last. */
static __device__ __forceinline__ bool top_precedes(float z, int32_t id, float other_z,
                                                    int32_t other_id)
{
    return z > other_z || (z == other_z && (uint32_t)id < (uint32_t)other_id);
}

/* Keeps the best two of the tokens tops_z, tops_id and a token that is not among them. */
static __device__ __forceinline__ void insert_top(float (&tops_z)[CUDA_STATISTICS_TOP_MAX],
                                                  int32_t (&tops_id)[CUDA_STATISTICS_TOP_MAX],
                                                  float z, int32_t id)
{
    static_assert(CUDA_STATISTICS_TOP_MAX == 2, "a first and a second token");
    if (top_precedes(z, id, tops_z[0], tops_id[0])) {
        tops_z[1] = tops_z[0];
        tops_id[1] = tops_id[0];
        tops_z[0] = z;
        tops_id[0] = id;
    } else if (top_precedes(z, id, tops_z[1], tops_id[1])) {
        tops_z[1] = z;
        tops_id[1] = id;
    }
}

#endif
