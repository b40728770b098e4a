/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   merges the summaries of all parts of a row and writes the outputs, or the merged
 *        summaries.
 * COST   48 bytes a part, row and sample, from the second-level cache: one wait for it, and what
 *        comes before and after a launch, some 3 us in all.
 * MAP    a warp a row and sample, which is a CTA.
 */
#include "cuda/common/merge.cuh"

extern "C" __global__ void __launch_bounds__(CUDA_FINISH_THREADS)
    gumbel_finish_rows(const __grid_constant__ cuda_params p)
{
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (p.shared_floors && threadIdx.x == 0)
        p.shared_floors[CUDA_FLOOR_WORDS * (int64_t)blockIdx.x] = 0;
    finish_draw(p, blockIdx.x, p.problem.with_mass != 0);
}
