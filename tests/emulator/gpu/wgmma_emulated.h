/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for wgmma.cuh, whose include guard it takes: products that a thread issues happen when
 * a thread of its warpgroup waits for them, for all 128 threads at once.
 */
#ifndef GUMBEL_CUDA_WGMMA_CUH
#define GUMBEL_CUDA_WGMMA_CUH

#include "cuda/common/ptx.cuh"

#include <deque>

/* A thread's part of a product, in commit number `group`. */
struct product {
    void (*add)(float *sum, int thread, uint32_t a, uint32_t b);
    float *sum;
    uint32_t a, b; /* addresses of tiles */
    uint64_t group;
};

/* Products issued by a thread. The list is empty before each run of a kernel. */
struct product_list {
    std::deque<product> queued;
    uint64_t committed;
};
static product_list products[FIBERS_MAX];

/* The address of a tile, in units of 16 bytes, as its descriptor. */
PTX uint32_t wgmma_address(const unsigned char *tile)
{
    return (uint32_t)(tile - shared_memory) / 16;
}
PTX uint64_t wgmma_descriptor(uint32_t address) { return address; }

template <bool half> PTX float operand(uint32_t tile, int row, int k)
{
    uint16_t bits;
    memcpy(&bits, tile_at(shared_memory + tile, row, k), sizeof bits);
    return half ? ptx_widen_f16(bits) : __uint_as_float((uint32_t)bits << 16);
}

namespace
{
template <int n, bool half> struct wgmma {
    PTX void add(float (&sum)[n / 2], uint64_t a, uint64_t b)
    {
        product_list &own = products[fibers_self()];
        own.queued.push_back(
            {multiply, sum, (uint32_t)(16 * a), (uint32_t)(16 * b), own.committed});
    }

  private:
    /* Multiplies the elements that wgmma.cuh assigns to a thread of the warpgroup. */
    static void multiply(float *sum, int thread, uint32_t a, uint32_t b)
    {
        int row = thread / 32 * 16 + thread % 32 / 4, column = 2 * (thread % 4);
        float left[2][16], right[16];
        for (int i = 0; i < 32; i++)
            left[i / 16][i % 16] = operand<half>(a, row + i / 16 * 8, i % 16);
        for (int j = 0; j < n / 4; j++) {
            for (int k = 0; k < 16; k++)
                right[k] = operand<half>(b, 8 * (j / 2) + column + j % 2, k);
            for (int f = 0; f < 2; f++) {
                float dot = 0;
                for (int k = 0; k < 16; k++)
                    dot += left[f][k] * right[k];
                sum[4 * (j / 2) + 2 * f + j % 2] += dot;
            }
        }
    }
};
} // namespace

/* The four warps of a warpgroup enter a product together (WARPGROUP.ARRIVE). */
PTX void ptx_wgmma_fence() { fibers_barrier(8 + (int)threadIdx.x / 128, 128); }
PTX void ptx_wgmma_commit() { products[fibers_self()].committed++; }

template <int pending> PTX void ptx_wgmma_wait()
{
    int self = fibers_self(), first = self - (int)threadIdx.x % 128;
    uint64_t all = products[self].committed, done = all - min<uint64_t>(all, pending);
    for (int i = first; i < first + 128; i++)
        while (products[i].committed < done)
            fibers_wait(&products[i].committed, ~UINT64_C(0), products[i].committed);
    for (int i = first; i < first + 128; i++)
        for (auto &queued = products[i].queued; !queued.empty() && queued.front().group < done;) {
            const product &next = queued.front();
            next.add(next.sum, i - first, next.a, next.b);
            queued.pop_front();
        }
}

#endif
