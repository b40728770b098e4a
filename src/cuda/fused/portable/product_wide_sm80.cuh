/* SPDX-License-Identifier: Apache-2.0
 *
 * The wide kernels' stages: how 16-bit weights and hidden states are copied to shared memory, and
 * how a warp multiplies them.
 *
 * A stage holds 64 or 128 bytes, its depth, of each of 256 weight rows and of each of n hidden
 * states. Of every 32 weight rows, token 4 g + e has place 8 e + g, so that ldmatrix reads
 * neighbouring places and a lane's sums belong to four neighbouring tokens. The 16-byte vector c of
 * place r is swizzled to c ^ (r / 2 % 4) if the depth is 64, and to c ^ (r % 8) if it is 128: eight
 * places that are read together lie in different banks.
 */
#ifndef GUMBEL_CUDA_PRODUCT_WIDE_SM80_CUH
#define GUMBEL_CUDA_PRODUCT_WIDE_SM80_CUH

#include "cuda/fused/portable/product_sm80.cuh"
#include "cuda/policy/wide_policy.h"

namespace
{

constexpr int kWideTile = CUDA_WIDE_TILE, kWideThreads = CUDA_WIDE_THREADS;
constexpr int kWideWarpTile = CUDA_WIDE_WARP_TILE;
constexpr int kColumnWarps = kWideThreads / 32 / kWarps; /* warps that share a warp tile */
static_assert(kWideWarpTile * kWarps == kWideTile, "a tile is the warp tiles of kWarps warps");
static_assert(kWideWarpTile == GUMBEL_BLOCK, "a warp tile has one noise bound a column");

/* Sizes of a kernel of n columns and stages of `depth_bytes` a row. */
template <int n, int depth_bytes> struct wide_shape {
    static constexpr int columns = n, warp_columns = n / kColumnWarps;
    static constexpr int depth = depth_bytes;
    static constexpr int vectors = depth / 16, steps = depth / 32;
    static constexpr int rows_at_once = kWideThreads / vectors; /* rows that the CTA copies */
    static constexpr uint32_t stage_bytes = (kWideTile + n) * depth;
    static_assert(depth == 64 || depth == 128, "the swizzle is written for these");
    static_assert(n % rows_at_once == 0, "all threads copy as many hidden states");
    static_assert(rows_at_once % 32 == 0, "a thread's rows have one place among 32");

    /* Shared address of a vector of a stage's row, relative to the first row. */
    static __device__ __forceinline__ uint32_t place_vector(int row, int vector)
    {
        return row * depth + 16 * (vector ^ row / (8 / vectors) % vectors);
    }

    /* A lane's shared addresses, relative to a stage: rows that it gives to ldmatrix. */
    static __device__ __forceinline__ uint32_t weights_at(int warp)
    {
        const int lane = threadIdx.x % 32;
        return place_vector(warp * kWideWarpTile + lane % 16, lane / 16);
    }

    static __device__ __forceinline__ uint32_t hidden_at(int column)
    {
        const int lane = threadIdx.x % 32;
        return kWideTile * depth + place_vector(column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
    }
};

/* A thread's copies: one vector of every rows_at_once-th weight row and hidden state, tile after
 * tile. Few members, since registers are scarce. The hidden size is a multiple of 8. */
template <class shape> struct wide_loader {
    static constexpr int rows_at_once = shape::rows_at_once, depth = shape::depth;
    static constexpr int weight_copies = kWideTile / rows_at_once;
    static constexpr int copies = weight_copies + shape::columns / rows_at_once;
    static_assert(copies <= 32, "`counts` has a bit for each copy");

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
        const int row = threadIdx.x / shape::vectors;
        weight = (const unsigned char *)q.weight.data +
                 ((from - q.first_token + find_token_place()) * q.weight.stride) * 2 +
                 16 * find_vector();
        hidden = (const unsigned char *)q.hidden.data + (first_row + row) * q.hidden.stride * 2 +
                 16 * find_vector();
        place = shape::place_vector(row, find_vector());
        remaining = count_bytes();
#pragma unroll
        for (int i = weight_copies; i < copies; i++)
            counts |= (uint32_t)(row + rows_at_once * (i - weight_copies) < rows) << i;
        mark_rows();
    }

    static __device__ __forceinline__ int find_vector() { return threadIdx.x % shape::vectors; }

    /* Place in the tile of the token of its first weight row. */
    static __device__ __forceinline__ int find_token_place()
    {
        const int row = threadIdx.x / shape::vectors;
        return row / 32 * 32 + 4 * (row % 8) + row % 32 / 8;
    }

    /* From its vector to the end of a row. */
    __device__ __forceinline__ int count_bytes() const
    {
        return (int)q.hidden_size * 2 - 16 * find_vector();
    }

    __device__ __forceinline__ void mark_rows()
    {
        const int token = tile + find_token_place();
        counts = counts >> weight_copies << weight_copies;
#pragma unroll
        for (int i = 0; i < weight_copies; i++)
            counts |= (uint32_t)(token + rows_at_once * i >= q.first_token &&
                                 token + rows_at_once * i < end)
                      << i;
    }

    /* Issues its i-th copy of a stage to the shared address `stage`. */
    __device__ __forceinline__ void copy_one(uint32_t stage, int i)
    {
        const unsigned char *from =
            i < weight_copies ? weight + i * rows_at_once * 2 * q.weight.stride
                              : hidden + (i - weight_copies) * rows_at_once * 2 * q.hidden.stride;
        sm80_copy_or_zero(stage + place + i * rows_at_once * depth, from,
                          counts >> i & 1 && remaining > 0);
    }

    /* Issues the copies of a stage that are due in one of `turns` turns. */
    __device__ __forceinline__ void copy_in_turn(uint32_t stage, int turn, int turns)
    {
#pragma unroll
        for (int i = 0; i < copies; i++)
            if (i * turns / copies == turn)
                copy_one(stage, i);
    }

    /* Ends the copies of a stage. */
    __device__ __forceinline__ void commit_stage()
    {
        sm80_copy_commit();
        weight += depth;
        hidden += depth;
        remaining -= depth;
        if (remaining <= -16 * find_vector())
            next_tile();
    }

    /* After the last tile, the copies are of zeros. */
    __device__ __forceinline__ void next_tile()
    {
        const int back = count_bytes() - remaining;
        weight += kWideTile * 2 * q.weight.stride - back;
        hidden -= back;
        remaining = count_bytes();
        tile += kWideTile;
        if (tile < end)
            mark_rows();
        else
            counts = 0;
    }
};

/* Waits until at most the last `pending` groups of this thread's copies are incomplete. */
__device__ __forceinline__ void wide_copy_wait(int pending)
{
    static_assert(CUDA_WIDE_STAGES_MIN == 3, "the last case");
    if (pending >= 5)
        sm80_copy_wait<5>();
    else if (pending >= 3)
        sm80_copy_wait<3>();
    else
        sm80_copy_wait<1>();
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

/* Operands of a warp's 64 tokens and n columns. A step is 16 elements of D; a stage has two or
 * four. The operands of weights are replaced by those of the next step once they have been
 * multiplied. */
template <class shape, bool half> struct wide_operands {
    static constexpr int n = shape::warp_columns;
    uint32_t a[4][4];         /* [block]: MMA row 8 h + g of block 2 u + f is token 4 g + 2 f + h */
    uint32_t b[2][n / 16][4]; /* [step][pair of groups]: two registers of each group of 8 columns */

    /* `stage`: this lane's shared address in the stage (weights_at). */
    __device__ __forceinline__ void load_weights(int step, uint32_t stage, int block)
    {
        sm80_load_matrices(a[block], (stage ^ 32 * step) + 16 * block * shape::depth);
    }

    /* `stage`: this lane's shared address in the stage (hidden_at). */
    __device__ __forceinline__ void load_hidden(int step, uint32_t stage)
    {
#pragma unroll
        for (int i = 0; i < n / 16; i++)
            sm80_load_matrices(b[step % 2][i], (stage ^ 32 * step) + 16 * i * shape::depth);
    }

    __device__ __forceinline__ void multiply(int step, wide_sums<n> &sum, int block) const
    {
#pragma unroll
        for (int j = 0; j < n / 8; j++)
            sm80_multiply<half>(&sum.value[block / 2][j][4 * (block % 2)], a[block],
                                b[step % 2][j / 2][2 * (j % 2)],
                                b[step % 2][j / 2][2 * (j % 2) + 1]);
    }
};

} // namespace

#endif
