/* SPDX-License-Identifier: Apache-2.0
 *
 * A team: the CTAs of a cluster, which hold one row of a request between them, each a share of its
 * tokens in shared memory, and agree by writing into each other's.
 *
 * Who may write when. A CTA writes into another's box before a barrier of the team, which the other
 * reads its boxes behind. Boxes alternate: when one is written again, a barrier has passed that its
 * reader reached only after reading. Bins are read between two such barriers. So nothing is read or
 * written in a CTA that has passed its last barrier.
 */
#ifndef GUMBEL_CUDA_CLUSTER_EXCHANGE_CUH
#define GUMBEL_CUDA_CLUSTER_EXCHANGE_CUH

#include "cuda/request/few/request_shared.cuh"

#include <cooperative_groups.h>

namespace
{

/* ------------------------------------------------------------------------------ exchanges ---- */

__device__ __forceinline__ int cluster_rank() { return blockIdx.x % kClusterCtas; }
__device__ __forceinline__ bool leads_cluster() { return cluster_rank() == 0; }
__device__ __forceinline__ void sync_cluster() { cooperative_groups::this_cluster().sync(); }

/* What another CTA has in the place of `own`. */
template <class T> __device__ __forceinline__ T *map_to_rank(T *own, int rank)
{
    return cooperative_groups::this_cluster().map_shared_rank(own, rank);
}

/* Give every CTA what the first kClusterCtas lanes of warp 0 have, all the same; afterwards the boxes
 * hold that of each rank, until the next but one exchange. Behind a barrier of the CTA. */
template <class T> __device__ __forceinline__ const exchange_slot *exchange_in_cluster(const T &own)
{
    static_assert(sizeof(T) <= sizeof(exchange_slot), "fits");
    uint32_t turn = shared_state().turn;
    auto &box = shared_state().buffers[turn];
    if (threadIdx.x < kClusterCtas)
        *(T *)map_to_rank(box[cluster_rank()], threadIdx.x) = own;
    sync_cluster();
    if (threadIdx.x == 0)
        shared_state().turn = 1 - turn;
    return (const exchange_slot *)box;
}

/* Give every CTA what the threads of each have, joined, in exchange_in_cluster()'s boxes. */
template <class T> __device__ __forceinline__ const exchange_slot *publish_in_cluster(T own)
{
    exchange_slot *slots = (exchange_slot *)shared_state().slots;
    own.join_warp();
    if (threadIdx.x % 32 == 0)
        *(T *)&slots[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x < 32)
        own = join_slots<T>(slots, kWarps);
    return exchange_in_cluster(own);
}

/* What all threads of the team have, joined, for all of them. */
template <class T> __device__ __forceinline__ T join_cluster(T own)
{
    return join_slots<T>(publish_in_cluster(own), kClusterCtas);
}

} // namespace

#endif
