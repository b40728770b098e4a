/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the entropy of each row, of z or of its raw logits, on GPUs without clusters.
 * COST   reads the values twice, the second time from the L2 cache; about 50 operations for each
 *        token within 43 of the largest, 5 for others.
 * MAP    a CTA a row. Pass 1 finds the largest value, pass 2 the sums relative to it.
 * SMEM   partial results of the warps.
 * SYNC   the CTA's threads wait for each other between the passes, and before thread 0 writes. No
 *        CTA waits for another.
 * NUMERICS  program_rules.h: integer sums, so the bits do not depend on the launch.
 */
#include "cuda/logits/entropy_row.cuh"

namespace
{

struct one_cta {
    static constexpr int count = 1;
    static __device__ __forceinline__ int get_rank() { return 0; }
    static __device__ __forceinline__ void sync() { __syncthreads(); }
    template <class T> static __device__ __forceinline__ T *map_to_rank(T *own, int) { return own; }
};

} // namespace

extern "C" __global__ void __launch_bounds__(kEntropyThreads)
    gumbel_row_entropy(const __grid_constant__ cuda_entropy_params p)
{
    store_entropy<one_cta>(p, blockIdx.x);
}
