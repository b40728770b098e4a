/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges among the CTAs of a thread-block cluster, in distributed shared memory.
 *
 * SYNC  A CTA writes to the buffers of other CTAs and arrives at a barrier of the cluster. The
 *        owner of a buffer waits at this barrier for all writers, then reads. Two buffers
 *        alternate, so a writer of the next exchange waits for no reader: before a buffer is
 *        written again, its owner has read it and has passed another barrier. Bins of other CTAs
 *        are read between two such barriers. Therefore no CTA accesses the memory of a CTA that has
 *        passed its last barrier.
 */
#ifndef GUMBEL_CUDA_SHARED_EXCHANGE_CUH
#define GUMBEL_CUDA_SHARED_EXCHANGE_CUH

#include <cooperative_groups.h>

namespace
{

__device__ __forceinline__ void sync_cluster() { cooperative_groups::this_cluster().sync(); }

/* The address in another CTA that corresponds to `own`. */
template <class T> __device__ __forceinline__ T *map_to_rank(T *own, int rank)
{
    return cooperative_groups::this_cluster().map_shared_rank(own, rank);
}

__device__ __forceinline__ void arrive_at_cluster()
{
    (void)cooperative_groups::this_cluster().barrier_arrive();
}
__device__ __forceinline__ void wait_for_cluster()
{
    cooperative_groups::this_cluster().barrier_wait();
}
__device__ __forceinline__ void reset_turn() { shared_state().turn = 0; }

template <exchange_kind, class T>
__device__ __forceinline__ const exchange_slot *exchange_in_cluster(const T &own)
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

__device__ __forceinline__ void publish_found_bin(const found_bin &found)
{
#pragma unroll 1
    for (int rank = 0; rank < kClusterCtas; rank++)
        *map_to_rank(&shared_state().decision, rank) = found;
}
__device__ __forceinline__ found_bin wait_for_found_bin()
{
    sync_cluster();
    return shared_state().decision;
}

template <class T> __device__ __forceinline__ void publish_bins(const T *) {}
template <class T> __device__ __forceinline__ const T *bins_of_rank(T *own, int rank)
{
    return map_to_rank(own, rank);
}

__device__ __forceinline__ cuda_candidate &place_in_list(uint32_t place)
{
    return map_to_rank(shared_state().scratch.list, 0)[cluster_rank() * kShortlistOfSlice + place];
}
__device__ __forceinline__ const cuda_candidate *lists_of_slices()
{
    return shared_state().scratch.list;
}

__device__ __forceinline__ float load_from_slice(int rank, int place)
{
    return map_to_rank(slice_logits(), rank)[place];
}

} // namespace

#endif
