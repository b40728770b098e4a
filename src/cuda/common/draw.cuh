/* SPDX-License-Identifier: Apache-2.0
 *
 * The draw inside a kernel, in pieces that own no memory: the Philox words of four tokens, the
 * screen, the exact score of what passes it, a score that is surely reached, and the best token of
 * a lane and of a warp (docs/maths.md, sections 2, 3 and 6).
 *
 * Who owns what. A lane offers the tokens that it scores to a draw_winner of its own; lanes of a
 * warp agree by draw_winner_of_warp(); warps meet at a barrier. So nothing is locked, and a
 * threshold that another warp raises is only ever a hint: a stale one costs time, never a token.
 */
#ifndef GUMBEL_CUDA_DRAW_CUH
#define GUMBEL_CUDA_DRAW_CUH

#include "core/row.h"
#include "maths/summary.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/ptx.cuh"

#define LOG2E 1.44269504088896341f
#define LN2   0.69314718055994531f
/* Bits of a word that the screen sees; set for a greedy row, so that u is just below 1. */
#define DRAW_ONES 0x7fffffu

/* ------------------------------------------------------------------------------- the words ---- */

/* Philox for one row and sample. Its first two rounds have products that are the same for all
 * tokens; this is what is left of them, and the keys of the third. */
struct draw_philox {
    uint32_t key0, key1;
    uint32_t first, second, third, fourth;
};

static __device__ __forceinline__ draw_philox draw_philox_of(const gumbel_stream &stream)
{
    uint32_t key0 = (uint32_t)stream.seed, key1 = (uint32_t)(stream.seed >> 32);
    uint64_t p1 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_1 * stream.sample;
    uint64_t p0 =
        (uint64_t)GUMBEL_PHILOX_MULTIPLIER_0 * ((uint32_t)(p1 >> 32) ^ stream.position ^ key0);
    return {key0 + 2 * GUMBEL_PHILOX_WEYL_0,
            key1 + 2 * GUMBEL_PHILOX_WEYL_1,
            stream.domain ^ key1,
            (uint32_t)p1 ^ (key0 + GUMBEL_PHILOX_WEYL_0),
            (uint32_t)(p0 >> 32) ^ (key1 + GUMBEL_PHILOX_WEYL_1),
            (uint32_t)p0};
}

/* A block after its first two rounds. `tail` is 0 or GUMBEL_TAIL_DOMAIN. */
static __device__ __forceinline__ uint4 draw_start(const draw_philox &f, uint32_t block,
                                                   uint32_t tail = 0)
{
    uint64_t p0 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_0 * block;
    uint64_t p1 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_1 * ((uint32_t)(p0 >> 32) ^ f.first ^ tail);
    return {(uint32_t)(p1 >> 32) ^ f.second, (uint32_t)p1, f.third ^ (uint32_t)p0, f.fourth};
}

static __device__ __forceinline__ void draw_round(uint4 &c, uint32_t key0, uint32_t key1)
{
    uint64_t p0 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_0 * c.x;
    uint64_t p1 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_1 * c.z;
    c = {(uint32_t)(p1 >> 32) ^ c.y ^ key0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c.w ^ key1,
         (uint32_t)p0};
}

/* The words of tokens 4 * block .. + 3. */
static __device__ __forceinline__ uint4 draw_words(const draw_philox &f, uint32_t block,
                                                   uint32_t tail = 0)
{
    uint4 c = draw_start(f, block, tail);
    uint32_t key0 = f.key0, key1 = f.key1;
#pragma unroll
    for (int i = 2; i < GUMBEL_PHILOX_ROUNDS; i++) {
        draw_round(c, key0, key1);
        key0 += GUMBEL_PHILOX_WEYL_0;
        key1 += GUMBEL_PHILOX_WEYL_1;
    }
    return c;
}

/* ------------------------------------------------------------------------------ the scores ---- */

/* The soft-capped logit, out of line: unrolled, its fifty instructions would crowd the hot loop
 * out of the instruction cache. */
static __device__ __noinline__ float draw_capped(const cuda_params &p, float logit)
{
    float y = logit * p.problem.scale;
    return fabsf(y) < INFINITY ? p.problem.soft_cap * gumbel_tanh(y * p.inverse_cap) : y;
}

/* The exact score of a token of transformed logit z and word r, eq. 3; z for a greedy row. */
static __device__ __forceinline__ float draw_score(const draw_philox &f, bool greedy, float z,
                                                   uint32_t r, uint32_t token)
{
    if (greedy)
        return z;
    if (r >= GUMBEL_TAIL_WORDS)
        return z + gumbel_of_word(r);
    uint4 more = draw_words(f, token >> 2, GUMBEL_TAIL_DOMAIN);
    uint32_t low = token & 1 ? more.y : more.x, high = token & 1 ? more.w : more.z;
    return z + gumbel_of_tail(r, token & 2 ? high : low);
}

/* A score that the token surely reaches: g >= ln((1 - u) / u), less a margin. NaN or infinite
 * where z is. */
static __device__ __forceinline__ float draw_floor(bool greedy, float z, uint32_t r)
{
    if (greedy)
        return z - fmaf(fabsf(z), 0x1p-20f, 1e-3f);
    float u = fmaf((float)r, 0x1p-32f, 0x1p-33f);
    float g = LN2 * (ptx_log2(1.0f - u) - ptx_log2(u));
    return z + g - fmaf(fabsf(z) + fabsf(g), 0x1p-18f, 2e-3f);
}

/* ------------------------------------------------------------------------------ the screen ---- */

/* The threshold that a token of score `score` sets: what has to be reached to beat it, less a
 * margin. */
static __device__ __forceinline__ float draw_threshold(float score)
{
    return score - fmaf(fabsf(score), 0x1p-21f, 1e-3f);
}

/* What the screen adds to z log2 e: the threshold, and a margin for rounding (docs/maths.md, 6). */
static __device__ __forceinline__ float draw_offset(float threshold)
{
    return fmaf(fabsf(threshold), 0x1p-19f, fmaf(-LOG2E, threshold, 1e-3f));
}

/* Whether a token may reach the threshold behind `offset`. 1 + u to 23 bits, from below, against
 * 1 + exp(z - threshold), z log2 e being y * factor. NaN and +inf pass. `ones` is DRAW_ONES for a
 * greedy row, else 0. With the largest y and the smallest r of some tokens: whether any may. */
static __device__ __forceinline__ bool draw_screen(float y, float factor, uint32_t r, uint32_t ones,
                                                   float offset)
{
    float bound = 1.0f + ptx_exp2(fmaf(y, factor, offset));
    return !(__uint_as_float(r >> 9 | ones | 0x3f800000u) > bound);
}

static __device__ __forceinline__ bool draw_screen(float z, uint32_t r, uint32_t ones, float offset)
{
    return draw_screen(z, LOG2E, r, ones, offset);
}

/* Whether any of four tokens may, of largest z `top` and smallest word `least`, all ones for a
 * greedy row: u against exp(z - threshold). The margin covers that u is rounded to a float. */
static __device__ __forceinline__ bool draw_screen_quad(float top, uint32_t least, float offset)
{
    return !((float)least > ptx_exp2(fmaf(top, LOG2E, offset + 32.0f)));
}

/* -------------------------------------------------------------------------- the best token ---- */

/* Bits that order as the float does; never 0. */
static __device__ __forceinline__ uint32_t ordered_bits(float x)
{
    uint32_t bits = __float_as_uint(x);
    return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float ordered_float(uint32_t bits)
{
    return __uint_as_float((bits & 0x80000000u) ? bits & 0x7fffffffu : ~bits);
}

/* The best token that a lane or a warp has scored; id -1 for none. */
struct draw_winner {
    float score, z;
    int id;
};

static __device__ __forceinline__ draw_winner draw_winner_none()
{
    return {-INFINITY, -INFINITY, -1};
}

/* Offer a scored token. NaN and -inf never win; a tie goes to the lower id. */
static __device__ __forceinline__ void draw_winner_offer(draw_winner &w, float score, float z,
                                                         int id)
{
    if (score > w.score || (score == w.score && id < w.id && score > -INFINITY))
        w = {score, z, id};
}

/* The best of all 32 lanes, which must be together; every lane gets it. */
static __device__ __forceinline__ draw_winner draw_winner_of_warp(const draw_winner &own)
{
    /* -0 and +0 tie, so they must have the same bits. */
    uint32_t key = ordered_bits(own.score + 0.0f);
    uint32_t best = __reduce_max_sync(~0u, key);
    uint32_t id = __reduce_min_sync(~0u, key == best ? (uint32_t)own.id : ~0u);
    int owner = __ffs(__ballot_sync(~0u, (uint32_t)own.id == id)) - 1;
    return {__shfl_sync(~0u, own.score, owner), __shfl_sync(~0u, own.z, owner), (int)id};
}

/* The largest of 32 lanes' floors, of which NaN and infinite ones do not count; -inf for none. */
static __device__ __forceinline__ float draw_floor_of_warp(float floor)
{
    uint32_t own = fabsf(floor) < INFINITY ? ordered_bits(floor) : ordered_bits(-INFINITY);
    return ordered_float(__reduce_max_sync(~0u, own));
}

#endif
