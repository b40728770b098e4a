/* SPDX-License-Identifier: Apache-2.0
 *
 * The states of rows that a kernel tries to serve before the clusters of the next launch, which
 * poll while a row is pending (CUDA_ROW_PENDING).
 */
#ifndef GUMBEL_CUDA_ROW_STATES_CUH
#define GUMBEL_CUDA_ROW_STATES_CUH

#include "cuda/common/cuda_truncated_params.h"

namespace
{

/* Publishes the state of row b to clusters, by one thread. */
__device__ __forceinline__ void publish_row_state(const cuda_truncated_params &p, int64_t b,
                                                  int32_t known)
{
    *(volatile int32_t *)&p.row_states[b] = known;
}

/* Marks row b, which the CTA could not serve, as a fallback row for clusters. For all threads. */
__device__ __noinline__ void publish_fallback_row(const cuda_truncated_params &p, int64_t b)
{
    if (threadIdx.x != 0)
        return;
    __threadfence(); /* clusters read data of launches that this CTA has waited for */
    publish_row_state(p, b, CUDA_ROW_FALLBACK);
}

} // namespace

#endif
