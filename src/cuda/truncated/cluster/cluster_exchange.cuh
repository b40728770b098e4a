/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges among the CTAs that hold one slice each of a row. In the names of this folder they are
 * a cluster: a thread-block cluster (shared_exchange.cuh), or, on GPUs without clusters, adjacent
 * CTAs of a cooperative launch (grid_exchange.cuh). CUDA guarantees for both that they run at the
 * same time. All threads of the cluster call each function, except where a comment names others.
 */
#ifndef GUMBEL_CUDA_CLUSTER_EXCHANGE_CUH
#define GUMBEL_CUDA_CLUSTER_EXCHANGE_CUH

#include "cuda/truncated/few/truncated_shared.cuh"

namespace
{

__device__ __forceinline__ int cluster_rank() { return blockIdx.x % kClusterCtas; }
__device__ __forceinline__ bool leads_cluster() { return cluster_rank() == 0; }

/* Memory that an exchange makes visible to all CTAs: the exchanged values, or also bins and lists
 * that were written before it. */
enum exchange_kind { EXCHANGE_VALUES, EXCHANGE_MEMORY };

/* Waits until all CTAs have arrived. Bins and lists that they published are then visible. */
__device__ __forceinline__ void sync_cluster();

/* The first barrier of a row, as an arrival and a wait, between which the slice is loaded. After
 * the wait, all CTAs of the cluster are running and have finished the previous row, so their
 * buffers may be written. */
__device__ __forceinline__ void arrive_at_cluster();
__device__ __forceinline__ void wait_for_cluster();

/* Begins the exchanges of a row; by one thread, between the arrival and the wait. */
__device__ __forceinline__ void reset_turn();

/* Sends the value of the first kClusterCtas lanes of warp 0, equal in all lanes, to every CTA. The
 * returned buffer holds one slot per rank and stays valid until the next exchange but one. Must
 * follow a barrier of the CTA. */
template <exchange_kind kind = EXCHANGE_VALUES, class T>
__device__ __forceinline__ const exchange_slot *exchange_in_cluster(const T &own);

/* Publishes the bin that a walk has found, by the only thread that has found one; then all threads
 * wait for it. Every CTA has set its decision.bin to -1, an exchange before, which stays if no
 * thread has found a bin. */
__device__ __forceinline__ void publish_found_bin(const found_bin &found);
__device__ __forceinline__ found_bin wait_for_found_bin();

/* Publishes this CTA's kBins bins `own`, which are in scratch.high or scratch.low, before an
 * exchange of memory. After it, bins_of_rank() is the address of another CTA's, until the next
 * exchange. */
template <class T> __device__ __forceinline__ void publish_bins(const T *own);
template <class T> __device__ __forceinline__ const T *bins_of_rank(T *own, int rank);

/* A place of the list of this slice, less than kShortlistOfSlice, to be written before an exchange
 * of memory; and for the leader after it, the lists of all slices. */
__device__ __forceinline__ cuda_candidate &place_in_list(uint32_t place);
__device__ __forceinline__ const cuda_candidate *lists_of_slices();

/* The logit at `place` of the slice of a CTA. */
__device__ __forceinline__ float load_from_slice(int rank, int place);

} // namespace

#ifdef CUDA_ROWS_BY_GRID
#include "cuda/truncated/cluster/grid_exchange.cuh"
#else
#include "cuda/truncated/cluster/shared_exchange.cuh"
#endif

namespace
{

/* Joins the values of the CTA's threads and sends the result, as exchange_in_cluster(). */
template <exchange_kind kind = EXCHANGE_VALUES, class T>
__device__ __forceinline__ const exchange_slot *publish_in_cluster(T own)
{
    exchange_slot *slots = (exchange_slot *)shared_state().slots;
    own.join_warp();
    if (threadIdx.x % 32 == 0)
        *(T *)&slots[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x < 32)
        own = join_slots<T>(slots, kWarps);
    return exchange_in_cluster<kind>(own);
}

/* Joins the values of all threads of the cluster, for all of them. */
template <exchange_kind kind = EXCHANGE_VALUES, class T>
__device__ __forceinline__ T join_cluster(T own)
{
    return join_slots<T>(publish_in_cluster<kind>(own), kClusterCtas);
}

} // namespace

#endif
