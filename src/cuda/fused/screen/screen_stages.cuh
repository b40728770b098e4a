/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of stages of a draw with a screen in shared memory, before screen_shared.cuh, and the
 * sums of a consumer's tile. All kernels of a draw have the same stages: tiles of the copy and of
 * the planes, as they lie in memory.
 */
#ifndef GUMBEL_CUDA_SCREEN_STAGES_CUH
#define GUMBEL_CUDA_SCREEN_STAGES_CUH

#include "cuda/fused/screen/screen_shared.cuh"

namespace
{

/* Sizes of a stage: a tile of the screen, then the planes. */
template <int n, class call> struct screen_stage {
    static constexpr int tile_bytes = CUDA_SCREEN_TILE_BYTES(call::coarse),
                         plane_bytes = n * CUDA_SCREEN_TILE, bytes = tile_bytes + plane_bytes;
    /* Of an array of tiles of the copy. */
    static constexpr int array_bytes = CUDA_SCREEN_TILE_BYTES(call::nibbles);
};

/* Shared memory of a kernel of n columns. */
template <int n> struct screen_memory {
    unsigned char *stages;
    screen_shared<n> &shared;
    template <class call>
    __device__ __forceinline__ screen_memory(const call &s, unsigned char *memory)
        : stages(memory),
          shared(*(screen_shared<n> *)(memory + s.call.stages * screen_stage<n, call>::bytes))
    {
    }
};

/* A thread's sums of both halves of its consumer's tile (layout: wgmma.cuh). */
template <int n> using screen_sums = int32_t[2][n / 2];

} // namespace

#endif
