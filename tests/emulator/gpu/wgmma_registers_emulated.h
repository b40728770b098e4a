/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for wgmma_registers.cuh, whose include guard it takes. Words that a thread passes in
 * registers are copied at once.
 */
#ifndef GUMBEL_CUDA_WGMMA_REGISTERS_CUH
#define GUMBEL_CUDA_WGMMA_REGISTERS_CUH

#include "wgmma_emulated.h"

#include <algorithm>

/* Words of the matrices' layout: those of rows g and g + 8, of columns 2 t, then 2 t + 8. */
PTX void wgmma_load_rows(uint32_t (&a)[4], const unsigned char *chunk, int step)
{
    const int row = (int)(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
    const int column = 16 * step + (int)(2 * (threadIdx.x % 4));
    for (int i = 0; i < 4; i++) {
        const int r = row + 8 * (i % 2), byte = 2 * (column + 8 * (i / 2));
        memcpy(&a[i], chunk + r * 128 + (byte / 16 ^ r % 8) * 16 + byte % 16, sizeof a[i]);
    }
    fibers_exchange(0); /* a warp loads together */
}
PTX void wgmma_settle(uint32_t (&)[4]) {}

/* The words that a thread has passed; the product's `a` is the index of the first. */
struct passed_words {
    static constexpr uint32_t kept = 64; /* products, more than a thread queues before it waits */
    uint32_t words[kept][4];
    uint32_t queued;
};
static passed_words passed[FIBERS_MAX];

/* Element k of row g + 8 f of the warp of thread `holder` - holder % 32 .., g = holder / 4. */
template <bool half> PTX float passed_element(int holder, int f, uint32_t at, int k)
{
    const uint32_t word = passed[holder + k % 8 / 2].words[at][k / 8 * 2 + f];
    const uint16_t bits = (uint16_t)(word >> 16 * (k % 2));
    return half ? ptx_widen_f16(bits) : __uint_as_float((uint32_t)bits << 16);
}

template <bool half> static void multiply_passed(float *sum, int thread, uint32_t at, uint32_t b)
{
    const int holder = fibers_self() - (int)threadIdx.x % 128 + thread / 4 * 4;
    for (int i = 0; i < 4; i++) {
        float dot = 0;
        for (int k = 0; k < 16; k++)
            dot += passed_element<half>(holder, i / 2, at, k) *
                   operand<half>(b, 2 * (thread % 4) + i % 2, k);
        sum[i] += dot;
    }
}

template <bool half> PTX void wgmma_add_rows(float (&sum)[4], const uint32_t (&a)[4], uint64_t b)
{
    passed_words &own = passed[fibers_self()];
    const uint32_t at = own.queued++ % passed_words::kept;
    std::copy_n(a, 4, own.words[at]);
    products[fibers_self()].queued.push_back(
        {multiply_passed<half>, sum, at, (uint32_t)(16 * b), products[fibers_self()].committed});
}

#endif
