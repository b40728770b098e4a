/* SPDX-License-Identifier: Apache-2.0
 *
 * The integer product of a draw with a screen by mma.sync, on every GPU: a warp copies the stages
 * that screen_multiply.cuh describes, and each warp of a consumer multiplies 16 rows of either half
 * of the tile. The tiles of the copy suit ldmatrix as they suit wgmma: vector c of row r, of 16
 * bytes, is at place c ^ (r % 8), so that the vectors of eight rows lie in different banks.
 * ldmatrix moves pairs of bytes; mma.m16n8k32 takes bytes 4 k to 4 k + 3 of a row from the lane
 * that receives pairs 2 k and 2 k + 1. The sums have the layout of wgmma.cuh.
 */
#ifndef GUMBEL_CUDA_SCREEN_MULTIPLY_SM80_CUH
#define GUMBEL_CUDA_SCREEN_MULTIPLY_SM80_CUH

#include "cuda/common/mma_sm80.cuh"
#include "cuda/fused/screen/screen_stages.cuh"

namespace
{

/* A warp copies 32 vectors of 16 bytes at a time. */
constexpr int kCopyBytes = 32 * 16;

/* Copies `bytes` of a stage; by a warp. */
template <int bytes> __device__ __forceinline__ void copy_to_stage(uint32_t to, const int8_t *from)
{
    const int own = 16 * (threadIdx.x % 32);
#pragma unroll
    for (int at = 0; at < bytes; at += kCopyBytes)
        sm80_copy_vector(to + at + own, from + at + own);
}

/* Operands of two steps of 32 columns: registers of the rows of either half of the tile. */
struct screen_rows_operand {
    uint32_t words[2][2][4]; /* [step][half] */

    /* `rows`: this lane's shared address in the tile; `pair`: of steps. */
    __device__ __forceinline__ void load(uint32_t rows, int pair)
    {
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                sm80_load_matrices(words[step][h],
                                   (rows ^ (64 * pair + 32 * step)) +
                                       h * (CUDA_SCREEN_TILE * CUDA_SCREEN_TILE / 2));
    }
};

/* Adds the products of a stage; `rows` and `columns` are this lane's shared addresses in the tile
 * and in the planes. */
template <int n>
__device__ __forceinline__ void multiply_stage(screen_sums<n> &sum, uint32_t rows, uint32_t columns)
{
#pragma unroll
    for (int pair = 0; pair < CUDA_SCREEN_TILE / 64; pair++) {
        screen_rows_operand a;
        a.load(rows, pair);
#pragma unroll
        for (int j = 0; j < n / 8; j++) {
            uint32_t b[4];
            sm80_load_matrices(b, (columns ^ 64 * pair) + 8 * j * CUDA_SCREEN_TILE);
#pragma unroll
            for (int step = 0; step < 2; step++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    sm80_multiply_bytes(&sum[h][4 * j], a.words[step][h], b[2 * step],
                                        b[2 * step + 1]);
        }
    }
}

/* How the kernels of screen_draw_sm80.cu copy and multiply: by the copies of a warp, and by
 * mma.sync. Registers of warps are equal. */
struct screen_mma_ring {
    static constexpr int copy_arrivals = 32, free_arrivals = 4; /* the producer's lanes; warps */

    static __device__ __forceinline__ bool is_producer(int thread)
    {
        return thread >= SM90_DRAW_THREADS + SM90_SERVE_THREADS;
    }
    static __device__ __forceinline__ void give_registers_to_consumers(bool) {}

    template <int n, class call>
    static __device__ __forceinline__ void copy_stages(const call &s,
                                                       const screen_memory<n> &memory)
    {
        using sizes = screen_stage<n, call>;
        const uint32_t ring = ptx_shared_address(memory.stages);
        stage_ring at(s.call.stages);
        for (int tile = blockIdx.x; tile < s.call.tiles; tile += gridDim.x) {
            const int8_t *copy = s.copy + (int64_t)tile * s.depths * sizes::tile_bytes;
            const int8_t *planes = s.planes;
#pragma unroll 1
            for (int k = 0; k < s.depths; k++, at.advance()) {
                const uint32_t stage = ring + at.stage * sizes::bytes;
                ptx_barrier_wait(&memory.shared.empty[at.stage], at.parity ^ 1);
                copy_to_stage<sizes::tile_bytes>(stage, copy);
                copy_to_stage<sizes::plane_bytes>(stage + sizes::tile_bytes, planes);
                sm80_copy_arrive(&memory.shared.full[at.stage]);
                copy += sizes::tile_bytes;
                planes += sizes::plane_bytes;
            }
        }
    }

    template <int n, class call>
    static __device__ __forceinline__ void multiply_tile(const call &s, screen_sums<n> &sum,
                                                         const screen_memory<n> &memory,
                                                         stage_ring &at)
    {
        using sizes = screen_stage<n, call>;
        static_assert(!call::nibbles && !call::truncates, "only a copy of bytes");
        static_assert(offsetof(screen_shared<n>, penalties) <= CUDA_SCREEN_SM80_SIDE_BYTES(n),
                      "cuda_screen_sm80_stages() counts this size");
        screen_shared<n> &shared = memory.shared;
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, row = lane % 8;
        const uint32_t ring = ptx_shared_address(memory.stages);
        const uint32_t rows =
            ring + (16 * warp + lane % 16) * CUDA_SCREEN_TILE + 16 * (lane / 16 ^ row);
        const uint32_t columns =
            ring + sizes::tile_bytes + row * CUDA_SCREEN_TILE + 16 * (lane / 8 ^ row);
#pragma unroll 1
        for (int k = 0; k < s.depths; k++, at.advance()) {
            ptx_barrier_wait(&shared.full[at.stage], at.parity);
            multiply_stage<n>(sum, rows + at.stage * sizes::bytes,
                              columns + at.stage * sizes::bytes);
            __syncwarp();
            if (lane == 0)
                ptx_barrier_arrive(&shared.empty[at.stage]);
        }
        if (lane == 0)
            ptx_barrier_arrive(&shared.multiplied[threadIdx.x / 128]);
    }
};

} // namespace

#endif
