/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for screen_ptx.cuh, whose include guard it takes: copies of bytes, which write at once,
 * and products of bytes, asked for and done as those of wgmma_words.h.
 */
#ifndef GUMBEL_CUDA_SCREEN_PTX_CUH
#define GUMBEL_CUDA_SCREEN_PTX_CUH

#include "wgmma_words.h"

PTX void screen_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier, uint64_t)
{
    memcpy(to, from, bytes);
    mbarrier_change(barrier, 0, -(int)bytes);
}
PTX void screen_fetch(const void *from, uint32_t) { (void)*(const volatile char *)from; }
PTX void screen_fence_shared() {}

PTX int32_t operand_byte(uint32_t tile, int row, int k)
{
    return *(int8_t *)((uintptr_t)tile_at(shared_memory + tile, row, k / 2) + k % 2);
}

namespace
{
template <int n> struct screen_wgmma {
    PTX void add(int32_t (&sum)[n / 2], uint64_t a, uint64_t b)
    {
        product_list &own = products[fibers_self()];
        own.req.push_back(
            {multiply, (float *)sum, (uint32_t)(16 * a), (uint32_t)(16 * b), own.committed});
    }

  private:
    static void multiply(float *into, int thread, uint32_t a, uint32_t b)
    {
        int32_t *sum = (int32_t *)into;
        int row = thread / 32 * 16 + thread % 32 / 4, column = 2 * (thread % 4);
        for (int i = 0; i < n / 2; i++)
            for (int k = 0; k < 32; k++)
                sum[i] += operand_byte(a, row + i / 2 % 2 * 8, k) *
                          operand_byte(b, i / 4 * 8 + column + i % 2, k);
    }
};
} // namespace

#endif
