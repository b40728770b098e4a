/* SPDX-License-Identifier: Apache-2.0
 *
 * The noise of a tile for the Hopper kernel: a byte for every two tokens of a column, that bounds
 * the larger of their two noises. Exact noise is computed later, of the few tokens that the bound
 * lets through.
 *
 * A byte q says g <= q / SM90_UNITS. g = -ln E <= -ln u since a standard exponential E is at least
 * u, and -log2 u is at most 32 - log2 r, which the exponent and two more bits of r as a float bound
 * to a quarter. A token's E is at least that of its own word; but for the one of its block that has
 * the least, E of the block's word by 64: six more. That token's byte covers the other one's of the
 * two, and takes its place once all are there. 255 stands for r = 0, where the least E is as small
 * as 2^-65; it sets the unit.
 */
#ifndef GUMBEL_CUDA_NOISE_SM90_CUH
#define GUMBEL_CUDA_NOISE_SM90_CUH

#include "cuda/common/draw.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

/* Bytes that lie together for a consumer thread: those of four groups of eight columns. */
template <int n> constexpr int noise_piece = n / 4 < 8 ? n / 4 : 8;

/* Where consumer thread `thread` finds the bytes of its columns 8 j + 2 q, 8 j + 2 q + 1. */
template <int n> __device__ __forceinline__ int noise_place(int thread, int j)
{
    constexpr int piece = noise_piece<n>;
    return 2 * j / piece * (SM90_DRAW_THREADS * piece) + thread * piece + 2 * j % piece;
}

/* And those of the tokens at 2 h and 2 h + 1 of a tile, h = place / 2, in column `column`. */
template <int n> __device__ __forceinline__ int noise_place_of(uint32_t place, int column)
{
    int thread = 8 * (place / 4) + 4 * (place / 2 & 1) + column % 8 / 2;
    return noise_place<n>(thread, column / 8) + (column & 1);
}

/* What log2 64 is in bytes' quarters. */
#define SM90_BLOCK_QUARTERS (4 * 6)

/* The bound of a word: 4 * 32 + 4 * 127 less the leading bits of a float; of 2^-`more` of it. */
__device__ __forceinline__ uint32_t noise_byte(uint32_t r, uint32_t more = 0)
{
    return min(636u + more - (__float_as_uint(__uint2float_rz(r)) >> 21), 255u);
}

/* Two columns' bytes for the tokens whose words are given, none where a row is greedy. */
__device__ __forceinline__ uint16_t noise_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                                uint32_t random)
{
    return (uint16_t)((noise_byte(min(a, b)) | noise_byte(min(c, d)) << 8) & random);
}

/* Words x[i] of draw a and y[i] of draw b for the tokens of Philox blocks block + i * step: side by
 * side, since each alone is a chain of dependent instructions. */
template <int count>
__device__ __forceinline__ void words_of_pair(const draw_philox &a, const draw_philox &b,
                                              uint32_t block, uint32_t step, uint4 (&x)[count],
                                              uint4 (&y)[count])
{
    uint32_t a0 = a.key0, a1 = a.key1, b0 = b.key0, b1 = b.key1;
#pragma unroll
    for (int i = 0; i < count; i++) {
        x[i] = draw_start(a, block + i * step, 0);
        y[i] = draw_start(b, block + i * step, 0);
    }
#pragma unroll
    for (int round = 2; round < GUMBEL_PHILOX_ROUNDS; round++) {
#pragma unroll
        for (int i = 0; i < count; i++) {
            draw_round(x[i], a0, a1);
            draw_round(y[i], b0, b1);
        }
        a0 += GUMBEL_PHILOX_WEYL_0;
        a1 += GUMBEL_PHILOX_WEYL_1;
        b0 += GUMBEL_PHILOX_WEYL_0;
        b1 += GUMBEL_PHILOX_WEYL_1;
    }
}

/* How the noise of a tile is cut: into chunks, which warps take in turn. A lane takes a pair of
 * columns, and as many Philox blocks at once as keep its instructions apart; where there are fewer
 * than 32 pairs, a warp takes several blocks side by side. */
template <int n> struct noise_cut {
    static constexpr int pairs = n / 2 < 32 ? n / 2 : 32;
    static constexpr int ahead = 4, side = 32 / pairs;
    static constexpr int groups = n / 2 / pairs; /* of pairs */
    static constexpr int chunks = groups * (CUDA_SM90_TILE / 4 / (ahead * side));
    /* Whether a team makes the noise of its next tile itself, between two products. Where the
     * tensor cores are the bound, noise beside a wgmma costs both of them more than alone; else the
     * warps that serve make it meanwhile. */
    static constexpr bool by_team = n > 128;
};

/* One chunk. The eight consumer lanes 8 k .. 8 k + 7 hold the tokens of block k, the lower two
 * tokens in the lower four. */
template <int n>
__device__ __forceinline__ void noise_of_chunk(const cuda_params &p, unsigned char *bytes,
                                               const sm90_draw *draws, uint32_t first, int chunk)
{
    using cut = noise_cut<n>;
    int lane = threadIdx.x % 32, pair = cut::pairs * (chunk % cut::groups) + lane % cut::pairs;
    int j = pair / 4, quad = pair % 4;
    int block = chunk / cut::groups * cut::ahead * cut::side + lane / cut::pairs;
    uint32_t domain = p.problem.sampling.domain;
    const sm90_draw left = draws[8 * j + 2 * quad], right = draws[8 * j + 2 * quad + 1];
    draw_philox a = draw_philox_of({left.seed, left.position, left.sample, domain});
    draw_philox b = draw_philox_of({right.seed, right.position, right.sample, domain});
    uint32_t random = (left.greedy ? 0 : 0xffu) | (right.greedy ? 0 : 0xff00u);
    uint4 x[cut::ahead], y[cut::ahead];
    words_of_pair(a, b, first + block, cut::side, x, y);
#pragma unroll
    for (int i = 0; i < cut::ahead; i++) {
        int thread = 8 * (block + i * cut::side) + quad;
        *(uint16_t *)(bytes + noise_place<n>(thread, j)) =
            noise_bytes(x[i].x, x[i].y, y[i].x, y[i].y, random);
        *(uint16_t *)(bytes + noise_place<n>(thread + 4, j)) =
            noise_bytes(x[i].z, x[i].w, y[i].z, y[i].w, random);
    }
}

/* Of one column: the bytes of those tokens of the tile from token `first` on that have the least
 * exponential of their blocks. A tile that starts between two blocks has parts of three. */
template <int n>
__device__ __forceinline__ void noise_of_blocks(const cuda_params &p, unsigned char *bytes,
                                                const sm90_draw &draw, uint32_t first, int column)
{
    constexpr uint32_t tile = CUDA_SM90_TILE;
    static_assert(tile == 2 * GUMBEL_BLOCK, "a call of Philox serves an aligned tile");
    if (draw.greedy)
        return;
    const draw_philox philox =
        draw_philox_of({draw.seed, draw.position, draw.sample, p.problem.sampling.domain});
#pragma unroll 1
    for (uint32_t at = first / tile; at <= (first + tile - 1) / tile; at++) {
        const uint4 words = draw_words(philox, at, GUMBEL_BLOCK_DOMAIN);
#pragma unroll
        for (uint32_t half = 0; half < tile; half += GUMBEL_BLOCK) {
            const draw_block own = draw_block_in(words, half);
            const uint32_t place = at * tile + half + own.place() - first;
            if (place < tile)
                bytes[noise_place_of<n>(place, column)] =
                    (unsigned char)noise_byte(own.r, SM90_BLOCK_QUARTERS);
        }
    }
}

/* A tile's noise, to [S][64 n] bytes, by so many threads, of which this is the thread-th; sync()
 * waits for all of them. Their warps make a chunk in turn. */
template <int n, int threads, class call, class F>
__device__ __forceinline__ void noise_of_tile(const call &p, unsigned char *bytes,
                                              const shared_sm90<n> &shared, int tile, int thread,
                                              F sync)
{
    const uint32_t first = (uint32_t)(p.problem.first_token + (int64_t)tile * CUDA_SM90_TILE);
    const int samples = p.samples();
    for (int sample = 0; sample < samples; sample++)
        for (int i = thread / 32; i < noise_cut<n>::chunks; i += threads / 32)
            noise_of_chunk<n>(p, bytes + sample * 64 * n, shared.draws + sample * n, first / 4, i);
    sync();
    for (int i = thread; i < n * samples; i += threads)
        noise_of_blocks<n>(p, bytes + i / n * 64 * n, shared.draws[i], first, i % n);
}

} // namespace

#endif
