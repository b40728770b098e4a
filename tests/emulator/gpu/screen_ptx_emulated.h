/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for screen_ptx.cuh, whose include guard it takes: copies of bytes, which write at once,
 * and products of bytes, which are deferred as in wgmma_emulated.h. Words that a thread passes in
 * registers are copied at once.
 */
#ifndef GUMBEL_CUDA_SCREEN_PTX_CUH
#define GUMBEL_CUDA_SCREEN_PTX_CUH

#include "wgmma_emulated.h"

#include <algorithm>

PTX void screen_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier, uint64_t)
{
    memcpy(to, from, bytes);
    mbarrier_change(barrier, 0, -(int)bytes);
}
PTX void screen_fetch(const void *from, uint32_t) { (void)*(const volatile char *)from; }
PTX void screen_fence_shared() {}
PTX void screen_settle(uint32_t (&)[4]) {}
PTX uint32_t screen_low_half(uint32_t upper, uint32_t lower)
{
    return (upper << 4 & 0xf0f0f0f0u) | (lower & 0x0f0f0f0fu);
}
PTX uint32_t screen_high_half(uint32_t upper, uint32_t lower)
{
    return (upper & 0xf0f0f0f0u) | (lower >> 4 & 0x0f0f0f0fu);
}

PTX int32_t operand_byte(uint32_t tile, int row, int k)
{
    return *(int8_t *)((uintptr_t)tile_at(shared_memory + tile, row, k / 2) + k % 2);
}

namespace
{
/* The words that a thread has passed in registers; the product's `a` is the index of the first. */
struct register_words {
    static constexpr uint32_t kept = 64; /* products, more than a thread queues before it waits */
    uint32_t words[kept][4];
    uint32_t queued;
};
register_words registers_of[FIBERS_MAX];

template <int n> struct screen_wgmma {
    PTX void add(int32_t (&sum)[n / 2], uint64_t a, uint64_t b)
    {
        product_list &own = products[fibers_self()];
        own.queued.push_back(
            {multiply, (float *)sum, (uint32_t)(16 * a), (uint32_t)(16 * b), own.committed});
    }

    PTX void add_registers(int32_t (&sum)[n / 2], const uint32_t (&a)[4], uint64_t b)
    {
        const int self = fibers_self();
        register_words &own = registers_of[self];
        const uint32_t at = own.queued++ % register_words::kept;
        std::copy_n(a, 4, own.words[at]);
        products[self].queued.push_back(
            {multiply_registers, (float *)sum, at, (uint32_t)(16 * b), products[self].committed});
    }

  private:
    /* Element k of row 16 w + g + 8 f, from the registers of the four threads that hold the row. */
    static int32_t register_byte(int first, int thread, int f, uint32_t at, int k)
    {
        const int holder = first + thread / 4 * 4 + k % 16 / 4;
        return (int8_t)(registers_of[holder].words[at][k / 16 * 2 + f] >> k % 4 * 8);
    }

    static void multiply_registers(float *into, int thread, uint32_t at, uint32_t b)
    {
        int32_t *sum = (int32_t *)into;
        const int column = 2 * (thread % 4), first = fibers_self() - (int)threadIdx.x % 128;
        for (int i = 0; i < n / 2; i++)
            for (int k = 0; k < 32; k++)
                sum[i] += register_byte(first, thread, i / 2 % 2, at, k) *
                          operand_byte(b, i / 4 * 8 + column + i % 2, k);
    }

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
