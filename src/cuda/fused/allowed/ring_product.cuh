/* SPDX-License-Identifier: Apache-2.0
 *
 * The first warpgroup of a CTA multiplies up to 64 gathered rows of weights by the hidden states of
 * up to eight rows of the batch. A dot product is summed 16 elements a wgmma, in the order of D, as
 * in fused_sm90.cuh: the logits of both kernels are equal bit by bit.
 *
 * Shared memory is a ring of stages of 256 columns: the rows of weights, rounded up to eight, then
 * eight hidden states, each as [4][rows][64], 64 columns in 128-byte swizzle. A wgmma always
 * multiplies 64 rows of weights. If a stage has fewer, the wgmma reads past the stage, and the
 * results of unused rows are ignored.
 *
 * The wgmmas of a tile form one dependent chain. Stages of fewer rows are smaller, so that the ring
 * holds more of them: with up to 16 rows, copies of 15 segments are in flight, of the 16 segments
 * of D = 4096. The products of the next segment are queued while those of the previous one run: the
 * chain has no gaps as long as copies arrive.
 */
#ifndef GUMBEL_CUDA_RING_PRODUCT_CUH
#define GUMBEL_CUDA_RING_PRODUCT_CUH

#include "cuda/common/swizzle.cuh"
#include "cuda/fused/allowed/token_tiles.cuh"
#include "cuda/fused/screen/screen_ptx.cuh"

namespace
{

constexpr int kChunk = 64; /* columns of a swizzled row of 128 bytes */
constexpr int kChunks = CUDA_ALLOWED_SEGMENT / kChunk;
constexpr int kUnits = CUDA_ALLOWED_SEGMENT / 8; /* of 16 bytes, a row */
static_assert(kUnits == 32, "a warp copies a row of a segment");

/* Whether the ring has room for stages of `rows` rows, of which `ahead` are in flight. */
constexpr bool ring_has_room(int rows, int ahead)
{
    return (ahead + 2) * (rows + kRows) * 2 * CUDA_ALLOWED_SEGMENT <= CUDA_ALLOWED_RING_BYTES;
}

template <bool half> class ring_product
{
    const gumbel_problem &q;
    const token_tile &tile;
    const uint16_t *const *hidden; /* of each row of the batch */
    unsigned char *const ring;
    const int hidden_count, segments, depths;

  public:
    __device__ __forceinline__ ring_product(const gumbel_problem &problem, const token_tile &tokens,
                                            const uint16_t *const *hidden_states, int count,
                                            unsigned char *memory)
        : q(problem), tile(tokens), hidden(hidden_states), ring(memory), hidden_count(count),
          segments((int)((problem.hidden_size + CUDA_ALLOWED_SEGMENT - 1) / CUDA_ALLOWED_SEGMENT)),
          depths((int)((problem.hidden_size + kChunk - 1) / kChunk))
    {
    }

    /* Writes the logits of the tile's tokens, without a bias, to logits[row of the batch][token];
     * for the first warpgroup. */
    __device__ __forceinline__ void store_logits(float (*logits)[kTile]) const
    {
        float sum[4] = {};
        multiply(sum);
#pragma unroll
        for (int i = 0; i < 4; i++) /* layout: wgmma.cuh */
            logits[2 * (threadIdx.x % 4) + i % 2]
                  [threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * (i / 2)] = sum[i];
    }

  private:
    /* Adds the products of the tile's rows to `sum`. */
    __device__ __forceinline__ void multiply(float (&sum)[4]) const
    {
        const int count = __shfl_sync(~0u, tile.count, 0); /* uniform, also for the compiler */
        const int rows = (count + 7) / 8 * 8, ahead = get_ahead(rows), bytes = stage_bytes(rows);
        ring_place read = {0}, write = {0};
#pragma unroll 1
        for (int segment = 0; segment < ahead; segment++)
            copy(segment, ring + write.take_place(ahead) * bytes, count, rows);
#pragma unroll 1
        for (int segment = 0; segment < segments; segment++) {
            wait_for_copies(ahead);
            screen_fence_shared();
            ptx_wgmma_wait<1>();
            /* All threads' copies of this segment have arrived, and the products of the segment
             * before the previous one have read their stage. */
            ptx_named_barrier<1, kProductThreads>();
            queue_products(sum, ring + read.take_place(ahead) * bytes, rows,
                           min(kChunks, depths - segment * kChunks));
            copy(segment + ahead, ring + write.take_place(ahead) * bytes, count, rows);
        }
        ptx_wgmma_wait<0>();
        ptx_copy_async_wait<0>();
    }

    /* A place in the ring of `ahead` + 2 stages: `ahead` receive copies, and products may still
     * read the other two. */
    struct ring_place {
        int next;
        __device__ __forceinline__ int take_place(int ahead)
        {
            const int own = next;
            next = next == ahead + 1 ? 0 : next + 1;
            return own;
        }
    };

    static constexpr int kAheadOf16 = 15, kAheadOf32 = 8, kAheadOf64 = 3;

    /* Segments in flight. */
    static __device__ __forceinline__ int get_ahead(int rows)
    {
        return rows <= 16 ? kAheadOf16 : rows <= 32 ? kAheadOf32 : kAheadOf64;
    }

    /* Waits for the oldest of `ahead` segments. */
    static __device__ __forceinline__ void wait_for_copies(int ahead)
    {
        if (ahead == kAheadOf16)
            ptx_copy_async_wait<kAheadOf16 - 1>();
        else if (ahead == kAheadOf32)
            ptx_copy_async_wait<kAheadOf32 - 1>();
        else
            ptx_copy_async_wait<kAheadOf64 - 1>();
    }

    static constexpr __device__ __forceinline__ int weight_bytes(int rows)
    {
        return rows * 2 * CUDA_ALLOWED_SEGMENT;
    }
    static constexpr __device__ __forceinline__ int stage_bytes(int rows)
    {
        return weight_bytes(rows) + kRows * 2 * CUDA_ALLOWED_SEGMENT;
    }
    static_assert(ring_has_room(16, kAheadOf16) && ring_has_room(32, kAheadOf32) &&
                      ring_has_room(64, kAheadOf64),
                  "the ring has room");
    static_assert(kTile == 64, "get_ahead() has a case for each size of a tile");
    static_assert(CUDA_ALLOWED_FUSED_BYTES - CUDA_ALLOWED_RING_BYTES >= 64 * 128,
                  "a wgmma of 64 rows of any stage stays inside shared memory");

    /* Queues the products of a stage, and commits them. Only the last segment has fewer chunks. */
    static __device__ __forceinline__ void
    queue_products(float (&sum)[4], const unsigned char *stage, int rows, int chunks)
    {
        const uint32_t a = __shfl_sync(~0u, wgmma_address(stage), 0);
        const uint32_t b = __shfl_sync(~0u, wgmma_address(stage + weight_bytes(rows)), 0);
        if (chunks == kChunks) {
            ptx_wgmma_fence();
#pragma unroll
            for (int chunk = 0; chunk < kChunks; chunk++)
                queue_chunk(sum, a, b, rows, chunk);
            ptx_wgmma_commit();
            return;
        }
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; chunk++) {
            ptx_wgmma_fence();
            queue_chunk(sum, a, b, rows, chunk);
            ptx_wgmma_commit();
        }
    }

    static __device__ __forceinline__ void queue_chunk(float (&sum)[4], uint32_t a, uint32_t b,
                                                       int rows, int chunk)
    {
#pragma unroll
        for (int step = 0; step < kChunk / 16; step++)
            wgmma<kRows, half>::add(sum, wgmma_descriptor(a + chunk * (rows * 128 / 16) + 2 * step),
                                    wgmma_descriptor(b + chunk * (kRows * 128 / 16) + 2 * step));
    }

    /* Copies a segment to a stage. Commits a group of copies even if `segment` is past the end, so
     * that wait_for_copies() can count groups. Rows of hidden states are assigned from the last
     * warp down, because a few rows of weights occupy only the first warps. */
    __device__ __forceinline__ void copy(int segment, unsigned char *to, int count, int rows) const
    {
        constexpr int warps = kProductThreads / 32;
        const int warp = threadIdx.x / 32, unit = threadIdx.x % 32, chunk = unit / 8;
        const int64_t column = (int64_t)segment * CUDA_ALLOWED_SEGMENT + 8 * unit;
        const bool is_inside = column < q.hidden_size;
        if (segment < segments) {
#pragma unroll 4
            for (int row = warp; row < count; row += warps)
                copy_swizzled_unit(to + chunk * rows * 128, row, tile.weights[row] + column,
                                   is_inside);
#pragma unroll 1
            for (int row = warps - 1 - warp; row < hidden_count; row += warps)
                copy_swizzled_unit(to + weight_bytes(rows) + chunk * kRows * 128, row,
                                   hidden[row] + column, is_inside);
        }
        ptx_copy_async_commit();
    }
};

} // namespace

#endif
