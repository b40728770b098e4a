/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   ends a decode step: writes tokens to the ring and advances positions; updates row
 *        parameters that change from step to step.
 * COST   8 bytes a token and 8 a row: negligible beside the launch.
 * MAP    a CTA takes 256 rows; a thread takes every 256th of their tokens, then a row's position.
 *        If one position serves all rows, a single CTA takes them all, so that every thread reads
 *        the position before it advances.
 * SYNC   all threads of the CTA wait until positions are read before one advances them.
 */
#include "core/rule_updates.h"
#include "cuda/policy/cuda_policy.h"

/* The slot of row b; -1 if it has none. */
static __device__ int64_t slot_of(const gumbel_step &step, int64_t b)
{
    if (!step.slots.of_row)
        return b;
    int64_t slot = step.slots.of_row[b];
    return slot < step.slots.count ? slot : -1;
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_advance_rows(const __grid_constant__ gumbel_step step)
{
    const int64_t samples = step.num_samples;
    const int64_t width = step.slots.of_row ? step.slots.count : step.batch;
    int64_t live = step.batch;
    if (step.live_rows && *step.live_rows < live)
        live = *step.live_rows;
    int64_t rows = step.position_stride ? CUDA_ADVANCE_ROWS : step.batch;
    int64_t first = blockIdx.x * rows;
    int64_t last = first + rows < live ? first + rows : live;
    if (step.ring)
        for (int64_t i = first * samples + threadIdx.x; i < last * samples; i += CUDA_THREADS) {
            int64_t slot = slot_of(step, i / samples);
            if (slot < 0)
                continue;
            uint64_t position = step.position[slot * step.position_stride];
            int64_t place = (int64_t)(position % (uint64_t)step.ring_length);
            step.ring[(place * width + slot) * samples + i % samples] = step.tokens[i];
        }
    __syncthreads();
    if (step.position_stride == 0) {
        if (threadIdx.x == 0)
            step.position[0]++;
        return;
    }
    for (int64_t b = first + threadIdx.x; b < last; b += CUDA_THREADS) {
        int64_t slot = slot_of(step, b);
        if (slot >= 0)
            step.position[slot * step.position_stride]++;
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_update_row_parameters(const __grid_constant__ gumbel_rule_updates updates)
{
    const int64_t b = blockIdx.x * (int64_t)CUDA_THREADS + threadIdx.x;
    if (b < updates.batch)
        gumbel_update_row_rules(&updates, b);
}
