/* SPDX-License-Identifier: Apache-2.0
 *
 * PTX instructions of exchanges in global memory.
 */
#ifndef GUMBEL_CUDA_GRID_PTX_CUH
#define GUMBEL_CUDA_GRID_PTX_CUH

#include "cuda/common/ptx.cuh"

/* Relaxed store of eight aligned bytes in global memory, which other CTAs read. */
PTX void ptx_store_relaxed_8(uint64_t *at, uint64_t value)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/* Orders this thread's accesses to global memory before and after, for all CTAs (acquire, release).
 */
PTX void ptx_fence_global() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/* Wait until `count` words in global memory, which a CTA that runs at the same time stores, have
 * `step` in their lower halves; sets `values` to the upper halves. */
template <int count>
PTX void ptx_wait_for_step(const uint64_t *words, uint32_t step, uint32_t *values)
{
    bool found;
    do {
        found = true;
#pragma unroll
        for (int i = 0; i < count; i++) {
            const uint64_t word = ptx_load_relaxed_8(&words[i]);
            values[i] = (uint32_t)(word >> 32);
            found &= (uint32_t)word == step;
        }
    } while (!found);
}

#endif
