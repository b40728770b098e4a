/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the end of a decode step: tokens go into the ring, positions move on.
 * COST   8 bytes a token and 8 a row: nothing beside the launch.
 * MAP    a CTA takes 256 rows, a thread every 256th of their tokens, then a row's position. Where
 *        one position serves all rows a single CTA takes them all, so that all have read it
 *        before it moves.
 * SYNC   one __syncthreads() between reading positions and moving them.
 */
#include "cuda/policy/cuda_policy.h"

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_advance_rows(const __grid_constant__ gumbel_step step)
{
    int64_t samples = step.num_samples;
    int64_t rows = step.position_stride ? CUDA_ADVANCE_ROWS : step.batch;
    int64_t first = blockIdx.x * rows;
    int64_t last = first + rows < step.batch ? first + rows : step.batch;
    if (step.ring)
        for (int64_t i = first * samples + threadIdx.x; i < last * samples; i += CUDA_THREADS) {
            int64_t slot = step.position[i / samples * step.position_stride] % step.ring_length;
            step.ring[slot * step.batch * samples + i] = step.tokens[i];
        }
    __syncthreads();
    int64_t moving = step.position_stride ? last : 1;
    for (int64_t b = first + threadIdx.x; b < moving; b += CUDA_THREADS)
        step.position[b * step.position_stride]++;
}
