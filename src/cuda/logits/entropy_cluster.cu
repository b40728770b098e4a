/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   as entropy.cu, by a cluster a row.
 * COST   as entropy.cu. Slices are not kept in shared memory: rows may have any length, and a
 *        multiprocessor runs CTAs of several rows.
 * MAP    a cluster a row, a slice a CTA.
 * SMEM   partial results of the warps and of the cluster's CTAs.
 * SYNC   the CTAs of a cluster wait for each other three times: before a CTA writes to another
 *        one's shared memory; after each has sent the largest value of its slice to all; and after
 *        each has sent its sums to CTA 0. A CTA writes to no other after the last of these. All
 *        CTAs of a row take the same branches.
 * NUMERICS  program_rules.h: integer sums, so the bits do not depend on the launch.
 */
#include "cuda/logits/entropy_row.cuh"

#include <cooperative_groups.h>

namespace
{

struct cluster_ctas {
    static constexpr int count = CUDA_CLUSTER_CTAS;
    static __device__ __forceinline__ int get_rank() { return blockIdx.x % count; }
    static __device__ __forceinline__ void sync() { cooperative_groups::this_cluster().sync(); }
    template <class T> static __device__ __forceinline__ T *map_to_rank(T *own, int rank)
    {
        return cooperative_groups::this_cluster().map_shared_rank(own, rank);
    }
};

} // namespace

extern "C" __global__ void __cluster_dims__(CUDA_CLUSTER_CTAS, 1, 1)
    __launch_bounds__(kEntropyThreads)
        gumbel_row_entropy_by_cluster(const __grid_constant__ cuda_entropy_params p)
{
    store_entropy<cluster_ctas>(p, blockIdx.x / CUDA_CLUSTER_CTAS);
}
