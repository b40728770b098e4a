/* SPDX-License-Identifier: Apache-2.0
 *
 * The wide kernels' stages: how 16-bit weights and hidden states are copied to shared memory, and
 * how a warp multiplies them.
 *
 * A stage holds 64 bytes of each of 256 weight rows, and of each of n hidden states. Of every 32
 * weight rows, token 4 g + e has place 8 e + g, so that ldmatrix reads neighbouring places and a
 * lane's sums belong to four neighbouring tokens. The 16-byte vector c of place r is swizzled to
 * c ^ (r / 2 % 4): eight places that are read together lie in different banks.
 */
#ifndef GUMBEL_CUDA_PRODUCT_WIDE_SM80_CUH
#define GUMBEL_CUDA_PRODUCT_WIDE_SM80_CUH

#include "cuda/fused/portable/product_sm80.cuh"
#include "cuda/policy/wide_policy.h"

namespace
{

constexpr int kWideTile = CUDA_WIDE_TILE, kWideThreads = CUDA_WIDE_THREADS;
constexpr int kWideWarpTile = CUDA_WIDE_WARP_TILE, kWideDepth = CUDA_WIDE_DEPTH;
constexpr int kWideVectors = kWideDepth / 16;
constexpr int kWideRowsAtOnce = kWideThreads / kWideVectors; /* rows that the CTA copies at once */
constexpr int kColumnWarps = kWideThreads / 32 / kWarps;     /* warps that share a warp tile */
static_assert(kWideWarpTile * kWarps == kWideTile, "a tile is the warp tiles of kWarps warps");
static_assert(kWideWarpTile == GUMBEL_BLOCK, "a warp tile has one noise bound a column");
static_assert(kWideRowsAtOnce % 32 == 0, "a thread's rows have one place among 32");

/* Shared address of a vector of a stage's row, relative to the first row. */
__device__ __forceinline__ uint32_t wide_place(int row, int vector)
{
    return row * kWideDepth + 16 * (vector ^ row / 2 % kWideVectors);
}

/* A thread's copies: one vector of every 64th weight row and hidden state, tile after tile. Few
 * members, since registers are scarce. */
template <int n> struct wide_loader {
    static constexpr int weight_copies = kWideTile / kWideRowsAtOnce;
    static constexpr int hidden_copies = (n + kWideRowsAtOnce - 1) / kWideRowsAtOnce;
    static constexpr uint32_t stage_bytes = (kWideTile + n) * kWideDepth;

    const gumbel_problem &q;
    const unsigned char *weight; /* its first row of the tile, at the current depth */
    const unsigned char *hidden;
    int tile, end;   /* first token of the tile; tokens before `end` count */
    int remaining;   /* bytes from its vector to the end of the row; <= 0: none */
    uint32_t place;  /* of its first weight vector in a stage */
    uint32_t counts; /* bit i: its row i of the tile counts, then its hidden state i */

    /* Rows [first_row, first_row + rows) and tokens from `from` to `last`. */
    __device__ __forceinline__ wide_loader(const gumbel_problem &problem, int from, int last,
                                           int first_row, int rows)
        : q(problem), tile(from), end(last), counts(0)
    {
        const int row = threadIdx.x / kWideVectors;
        weight = (const unsigned char *)q.weight.data +
                 ((from - q.first_token + find_token_place()) * q.weight.stride) * 2 +
                 16 * find_vector();
        hidden = (const unsigned char *)q.hidden.data + (first_row + row) * q.hidden.stride * 2 +
                 16 * find_vector();
        place = wide_place(row, find_vector());
        remaining = count_bytes();
#pragma unroll
        for (int i = 0; i < hidden_copies; i++)
            counts |= (uint32_t)(row + kWideRowsAtOnce * i < rows) << (weight_copies + i);
        mark_rows();
    }

    static __device__ __forceinline__ int find_vector() { return threadIdx.x % kWideVectors; }

    /* From its vector to the end of a row. */
    __device__ __forceinline__ int count_bytes() const
    {
        return (int)q.hidden_size * 2 - 16 * find_vector();
    }

    /* Place in the tile of the token of its first weight row. */
    static __device__ __forceinline__ int find_token_place()
    {
        const int row = threadIdx.x / kWideVectors;
        return row / 32 * 32 + 4 * (row % 8) + row % 32 / 8;
    }

    __device__ __forceinline__ void mark_rows()
    {
        const int token = tile + find_token_place();
        counts = counts >> weight_copies << weight_copies;
#pragma unroll
        for (int i = 0; i < weight_copies; i++)
            counts |= (uint32_t)(token + kWideRowsAtOnce * i >= q.first_token &&
                                 token + kWideRowsAtOnce * i < end)
                      << i;
    }

    /* Issues the copies of a stage to the shared address `stage`, and advances to the next one. */
    __device__ __forceinline__ void copy(uint32_t stage)
    {
        const uint32_t size = min(max(remaining, 0), 16), to = stage + place;
#pragma unroll
        for (int i = 0; i < weight_copies; i++)
            sm80_copy(to + i * kWideRowsAtOnce * kWideDepth,
                      weight + i * kWideRowsAtOnce * 2 * q.weight.stride,
                      counts >> i & 1 ? size : 0);
#pragma unroll
        for (int i = 0; i < hidden_copies; i++)
            sm80_copy(to + (kWideTile + i * kWideRowsAtOnce) * kWideDepth,
                      hidden + i * kWideRowsAtOnce * 2 * q.hidden.stride,
                      counts >> (weight_copies + i) & 1 ? size : 0);
        weight += kWideDepth;
        hidden += kWideDepth;
        remaining -= kWideDepth;
        if (remaining <= -16 * find_vector())
            next_tile();
    }
    static_assert(n % kWideRowsAtOnce == 0, "all threads copy hidden states");

    __device__ __forceinline__ void next_tile()
    {
        const int back = count_bytes() - remaining;
        weight += kWideTile * 2 * q.weight.stride - back;
        hidden -= back;
        remaining = count_bytes();
        tile += kWideTile;
        mark_rows();
    }

    /* Issues the copies of the next stage, if there is one, as one group. */
    __device__ __forceinline__ void copy_next(uint32_t stage)
    {
        if (tile < end)
            copy(stage);
        sm80_copy_commit();
    }
};

/* Waits until at most the last `pending` groups of this thread's copies are incomplete. */
__device__ __forceinline__ void wide_copy_wait(int pending)
{
    static_assert(CUDA_WIDE_STAGES_MIN == 3 && CUDA_WIDE_STAGES_MAX == 8, "cases");
    switch (pending) {
    case 1:
        return sm80_copy_wait<1>();
    case 2:
        return sm80_copy_wait<2>();
    case 3:
        return sm80_copy_wait<3>();
    case 4:
        return sm80_copy_wait<4>();
    case 5:
        return sm80_copy_wait<5>();
    default:
        return sm80_copy_wait<6>();
    }
}

/* A lane's accumulators: half u of the warp tile has 32 tokens, with the layout of plain_sums. */
template <int n> struct wide_sums {
    float value[2][n / 8][8];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < 2 * n; i++)
            value[i / n][i % n / 8][i % 8] = 0.0f;
    }
};

/* Operands of a warp's 64 tokens and n columns. A step is 16 elements of D; a stage has two. The
 * operands of weights are replaced by those of the next step once they have been multiplied. */
template <int n, bool half> struct wide_operands {
    uint32_t a[4][4];         /* [block]: MMA row 8 h + g of block 2 u + f is token 4 g + 2 f + h */
    uint32_t b[2][n / 16][4]; /* [step][pair of groups]: two registers of each group of 8 columns */

    /* `stage`: this lane's shared address in the stage (wide_weights_at). */
    template <int step> __device__ __forceinline__ void load_weights(uint32_t stage, int block)
    {
        sm80_load_matrices(a[block], (stage ^ 32 * step) + 16 * block * kWideDepth);
    }

    /* `stage`: this lane's shared address in the stage (wide_hidden_at). */
    template <int step> __device__ __forceinline__ void load_hidden(uint32_t stage)
    {
#pragma unroll
        for (int i = 0; i < n / 16; i++)
            sm80_load_matrices(b[step][i], (stage ^ 32 * step) + 16 * i * kWideDepth);
    }

    template <int step> __device__ __forceinline__ void multiply(wide_sums<n> &sum, int block) const
    {
#pragma unroll
        for (int j = 0; j < n / 8; j++)
            sm80_multiply<half>(&sum.value[block / 2][j][4 * (block % 2)], a[block],
                                b[step][j / 2][2 * (j % 2)], b[step][j / 2][2 * (j % 2) + 1]);
    }
};

/* A lane's shared addresses, relative to a stage: rows that it gives to ldmatrix. */
__device__ __forceinline__ uint32_t wide_weights_at(int warp)
{
    int lane = threadIdx.x % 32;
    return wide_place(warp * kWideWarpTile + lane % 16, lane / 16);
}

__device__ __forceinline__ uint32_t wide_hidden_at(int column)
{
    int lane = threadIdx.x % 32;
    return kWideTile * kWideDepth + wide_place(column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

} // namespace

#endif
