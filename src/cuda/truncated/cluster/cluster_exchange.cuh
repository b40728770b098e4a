/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges in a thread-block cluster whose CTAs hold one slice each of a row, in distributed
 * shared memory.
 *
 * SYNC  A CTA writes to the buffers of other CTAs and arrives at a barrier of the cluster. The
 *        owner of a buffer waits at this barrier for all writers, then reads. Two buffers
 *        alternate, so a writer of the next exchange waits for no reader: before a buffer is
 *        written again, its owner has read it and has passed another barrier. Bins of other CTAs
 *        are read between two such barriers. Therefore no CTA accesses the memory of a CTA that has
 *        passed its last barrier.
 */
#ifndef GUMBEL_CUDA_CLUSTER_EXCHANGE_CUH
#define GUMBEL_CUDA_CLUSTER_EXCHANGE_CUH

#include "cuda/truncated/few/truncated_shared.cuh"

#include <cooperative_groups.h>

namespace
{

/* ------------------------------------------------------------------------------ exchanges ---- */

__device__ __forceinline__ int cluster_rank() { return blockIdx.x % kClusterCtas; }
__device__ __forceinline__ bool leads_cluster() { return cluster_rank() == 0; }
__device__ __forceinline__ void sync_cluster() { cooperative_groups::this_cluster().sync(); }

/* The address in another CTA that corresponds to `own`. */
template <class T> __device__ __forceinline__ T *map_to_rank(T *own, int rank)
{
    return cooperative_groups::this_cluster().map_shared_rank(own, rank);
}

/* Sends the value of the first kClusterCtas lanes of warp 0, equal in all lanes, to every CTA. The
 * returned buffer holds one slot per rank and stays valid until the next exchange but one. Must
 * follow a barrier of the CTA. */
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

/* Joins the values of the CTA's threads and sends the result, as exchange_in_cluster(). */
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

/* Joins the values of all threads of the cluster, for all of them. */
template <class T> __device__ __forceinline__ T join_cluster(T own)
{
    return join_slots<T>(publish_in_cluster(own), kClusterCtas);
}

} // namespace

#endif
