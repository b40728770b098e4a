/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for grid_ptx.cuh, whose include guard it takes: a thread that waits for a word runs
 * only after the word has changed.
 */
#ifndef GUMBEL_CUDA_GRID_PTX_CUH
#define GUMBEL_CUDA_GRID_PTX_CUH

#include "ptx_emulated.h"

PTX void ptx_store_relaxed_8(uint64_t *at, uint64_t value)
{
    fibers_yield();
    *at = value;
    fibers_yield();
}

PTX void ptx_fence_global() {}

template <int count>
PTX void ptx_wait_for_step(const uint64_t *words, uint32_t step, uint32_t *values)
{
    for (int i = 0; i < count; i++) {
        fibers_yield();
        while ((uint32_t)words[i] != step)
            fibers_wait(&words[i], UINT32_MAX, (uint32_t)words[i]);
        values[i] = (uint32_t)(words[i] >> 32);
    }
}

#endif
