/* SPDX-License-Identifier: Apache-2.0
 *
 * The integer product of a draw with a screen: a ring of stages in shared memory, which one thread
 * fills, and the product of a consumer's tile. wgmma reads bytes from shared memory; nibbles are
 * first made bytes in registers: high ones alone 16 (n - 8), both together q.
 */
#ifndef GUMBEL_CUDA_SCREEN_MULTIPLY_CUH
#define GUMBEL_CUDA_SCREEN_MULTIPLY_CUH

#include "cuda/fused/hopper/wgmma.cuh"
#include "cuda/fused/screen/screen_ptx.cuh"
#include "cuda/fused/screen/screen_stages.cuh"

namespace
{

template <int n, class call>
__device__ void produce_screen_stages(const call &s, const screen_memory<n> &memory)
{
    using sizes = screen_stage<n, call>;
    constexpr int bytes = sizes::array_bytes, planes = sizes::plane_bytes;
    stage_ring at(s.call.stages);
    uint64_t once = ptx_policy_evict_first(), often = ptx_policy_evict_last();
    for (int tile = blockIdx.x; tile < s.call.tiles; tile += gridDim.x) {
        const int64_t from = (int64_t)tile * s.depths * bytes;
#pragma unroll 1
        for (int k = 0; k < s.depths; k++, at.advance()) {
            unsigned char *stage = memory.stages + at.stage * sizes::bytes;
            uint64_t *arrived = &memory.shared.full[at.stage];
            ptx_barrier_wait(&memory.shared.empty[at.stage], at.parity ^ 1);
            ptx_barrier_arrive_expect(arrived, sizes::bytes);
            screen_copy(stage, s.copy + from + (int64_t)k * bytes, bytes, arrived, once);
            if (call::nibbles && !call::coarse)
                screen_copy(stage + bytes, s.low_nibbles + from + (int64_t)k * bytes, bytes,
                            arrived, once);
            screen_copy(stage + sizes::tile_bytes, s.planes + (int64_t)k * planes, planes, arrived,
                        often);
        }
    }
}

/* A thread's part of a stage of nibbles: of both halves of the tile, rows g and g + 8 of its warp's
 * sixteen (screen_params.h). */
template <bool coarse> struct nibble_parts {
    uint4 upper[2][2], lower[coarse ? 1 : 2][2];

    __device__ __forceinline__ void load(const unsigned char *tile)
    {
        constexpr int low = CUDA_SCREEN_TILE_BYTES(true), row_bytes = CUDA_SCREEN_TILE / 2;
        const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int f = 0; f < 2; f++) {
                const unsigned char *at =
                    tile + (64 * h + 8 * f + row) * row_bytes + 16 * (thread % 4);
                upper[h][f] = *(const uint4 *)at;
                if (!coarse)
                    lower[h][f] = *(const uint4 *)(at + low);
            }
    }

    /* The words of half h of the tile that screen_wgmma::add_registers() takes, for each 32 columns
     * of the stage. */
    __device__ __forceinline__ void unpack_half(int h,
                                                uint32_t (&words)[CUDA_SCREEN_TILE / 32][4]) const
    {
#pragma unroll
        for (int f = 0; f < 2; f++) {
            const uint4 u = upper[h][f], l = coarse ? uint4{0, 0, 0, 0} : lower[coarse ? 0 : h][f];
            const uint32_t us[4] = {u.x, u.y, u.z, u.w}, ls[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                words[i / 2 * 2][i % 2 * 2 + f] = screen_low_half(us[i], ls[i]);
                words[i / 2 * 2 + 1][i % 2 * 2 + f] = screen_high_half(us[i], ls[i]);
            }
        }
    }
};

/* Queues the products of a stage of nibbles, whose planes are at address `planes`. */
template <int n, bool coarse>
__device__ __forceinline__ void queue_nibbles(screen_sums<n> &sum,
                                              const nibble_parts<coarse> &parts, uint32_t planes)
{
    uint32_t words[2][CUDA_SCREEN_TILE / 32][4];
    parts.unpack_half(0, words[0]);
    parts.unpack_half(1, words[1]);
#pragma unroll
    for (int step = 0; step < CUDA_SCREEN_TILE / 32; step++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            screen_settle(words[h][step]);
    ptx_wgmma_fence();
#pragma unroll
    for (int step = 0; step < CUDA_SCREEN_TILE / 32; step++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            screen_wgmma<n>::add_registers(sum[h], words[h][step],
                                           wgmma_descriptor(planes + 2 * step));
    ptx_wgmma_commit();
}

/* Computes the product of the consumer's tile of nibbles. A product reads registers, so a stage is
 * unpacked when the products of the one before have ended, and loaded while they run. */
template <int n, class call>
__device__ __forceinline__ void multiply_nibbles(const call &s, screen_sums<n> &sum,
                                                 const screen_memory<n> &memory, stage_ring &at)
{
    using sizes = screen_stage<n, call>;
    screen_shared<n> &shared = memory.shared;
    const uint32_t start = wgmma_address(memory.stages + sizes::tile_bytes);
    nibble_parts<call::coarse> parts;
    const auto planes_of = [&](int stage) {
        return __shfl_sync(~0u, start + stage * (sizes::bytes / 16), 0);
    };
    const auto load_stage = [&] {
        ptx_barrier_wait(&shared.full[at.stage], at.parity);
        parts.load(memory.stages + at.stage * sizes::bytes);
    };
    load_stage();
#pragma unroll 1
    for (int k = 1; k < s.depths; k++) {
        const int stage = at.stage;
        queue_nibbles<n>(sum, parts, planes_of(stage));
        at.advance();
        load_stage();
        ptx_wgmma_wait<0>();
        if (threadIdx.x % 128 == 0)
            ptx_barrier_arrive(&shared.empty[stage]);
    }
    queue_nibbles<n>(sum, parts, planes_of(at.stage));
    if (threadIdx.x % 32 == 0)
        ptx_barrier_arrive(&shared.multiplied[threadIdx.x / 128]);
    ptx_wgmma_wait<0>();
    if (threadIdx.x % 128 == 0)
        ptx_barrier_arrive(&shared.empty[at.stage]);
    at.advance();
}

/* Computes the product of the consumer's tile of bytes, which wgmma reads from shared memory. */
template <int n, class call>
__device__ __forceinline__ void multiply_bytes(const call &s, screen_sums<n> &sum,
                                               const screen_memory<n> &memory, stage_ring &at)
{
    using sizes = screen_stage<n, call>;
    constexpr uint32_t half = sizes::tile_bytes / 2 / 16, whole = sizes::tile_bytes / 16;
    screen_shared<n> &shared = memory.shared;
    const uint32_t start = wgmma_address(memory.stages);
    int previous = -1;
#pragma unroll 1
    for (int k = 0; k < s.depths; k++, at.advance()) {
        const uint32_t stage = start + at.stage * (sizes::bytes / 16);
        const uint32_t a = __shfl_sync(~0u, stage, 0);
        const uint32_t b = __shfl_sync(~0u, stage + whole, 0);
        ptx_barrier_wait(&shared.full[at.stage], at.parity);
        ptx_wgmma_fence();
#pragma unroll
        for (int step = 0; step < CUDA_SCREEN_TILE / 32; step++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                screen_wgmma<n>::add(sum[h], wgmma_descriptor(a + h * half + 2 * step),
                                     wgmma_descriptor(b + 2 * step));
        ptx_wgmma_commit();
        ptx_wgmma_wait<1>();
        if (previous >= 0 && threadIdx.x % 128 == 0)
            ptx_barrier_arrive(&shared.empty[previous]);
        previous = at.stage;
    }
    if (threadIdx.x % 32 == 0)
        ptx_barrier_arrive(&shared.multiplied[threadIdx.x / 128]);
    ptx_wgmma_wait<0>();
    if (threadIdx.x % 128 == 0)
        ptx_barrier_arrive(&shared.empty[previous]);
}

/* How the kernels of screen_draw.cu copy and multiply: by bulk copies of one thread, and by wgmma.
 */
struct screen_wgmma_ring {
    /* Arrivals that complete a copy of a stage, besides its bytes, and that free a stage. */
    static constexpr int copy_arrivals = 1, free_arrivals = 1;

    static __device__ __forceinline__ bool is_producer(int thread)
    {
        return thread == SM90_DRAW_THREADS + SM90_SERVE_THREADS;
    }
    static __device__ __forceinline__ void give_registers_to_consumers(bool is_consumer)
    {
        if (is_consumer)
            ptx_increase_registers<kDrawRegisters>();
        else
            ptx_decrease_registers<kServeRegisters>();
    }
    template <int n, class call>
    static __device__ __forceinline__ void copy_stages(const call &s,
                                                       const screen_memory<n> &memory)
    {
        produce_screen_stages(s, memory);
    }
    template <int n, class call>
    static __device__ __forceinline__ void multiply_tile(const call &s, screen_sums<n> &sum,
                                                         const screen_memory<n> &memory,
                                                         stage_ring &at)
    {
        if constexpr (call::nibbles)
            multiply_nibbles<n>(s, sum, memory, at);
        else
            multiply_bytes<n>(s, sum, memory, at);
    }
};

} // namespace

#endif
