/* SPDX-License-Identifier: Apache-2.0
 *
 * Device functions of a draw, which own no memory: Philox words of tokens and blocks, bounds that
 * skip blocks of 64 tokens, a filter by a token's own word, exact scores, lower bounds on the
 * winning score, and the best token of a lane and of a warp (docs/maths.md, sections 2, 3 and 6).
 *
 * The reach of a block is an upper bound of its tokens' noise; J is its token with the most noise.
 *
 * Ownership: each lane offers the tokens that it scores to its own draw_winner; a warp merges them
 * by draw_winner_of_warp(); warps merge after a barrier. Nothing is locked, and a threshold raised
 * by another warp is a hint: a stale one costs time, never a token.
 */
#ifndef GUMBEL_CUDA_DRAW_CUH
#define GUMBEL_CUDA_DRAW_CUH

#include "core/row.h"
#include "maths/summary.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/ptx.cuh"

#define LOG2E 1.44269504088896341f
#define LN2   0.69314718055994531f

/* ---------------------------------------------------------------------------------- words ---- */

/* Philox of one row and sample: the products of its first two rounds that do not depend on the
 * token, and the keys of the third round. */
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

/* The state of Philox after its first two rounds. `kind` is 0 or GUMBEL_BLOCK_DOMAIN. */
static __device__ __forceinline__ uint4 draw_philox_begin(const draw_philox &f, uint32_t count,
                                                          uint32_t kind)
{
    uint64_t p0 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_0 * count;
    uint64_t p1 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_1 * ((uint32_t)(p0 >> 32) ^ f.first ^ kind);
    return {(uint32_t)(p1 >> 32) ^ f.second, (uint32_t)p1, f.third ^ (uint32_t)p0, f.fourth};
}

static __device__ __forceinline__ void draw_philox_round(uint4 &c, uint32_t key0, uint32_t key1)
{
    uint64_t p0 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_0 * c.x;
    uint64_t p1 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_1 * c.z;
    c = {(uint32_t)(p1 >> 32) ^ c.y ^ key0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c.w ^ key1,
         (uint32_t)p0};
}

/* gumbel_philox_words(): the words of tokens 4 * count .. 4 * count + 3 if `kind` is 0; two words
 * each of blocks 2 * count and 2 * count + 1 (128 tokens) if it is GUMBEL_BLOCK_DOMAIN. */
static __device__ __forceinline__ uint4 draw_philox_words(const draw_philox &f, uint32_t count,
                                                          uint32_t kind)
{
    uint4 c = draw_philox_begin(f, count, kind);
    uint32_t key0 = f.key0, key1 = f.key1;
#pragma unroll
    for (int i = 2; i < GUMBEL_PHILOX_ROUNDS; i++) {
        draw_philox_round(c, key0, key1);
        key0 += GUMBEL_PHILOX_WEYL_0;
        key1 += GUMBEL_PHILOX_WEYL_1;
    }
    return c;
}

/* The word of a token among the four words of its Philox block. */
static __device__ __forceinline__ uint32_t draw_select_word(uint4 words, uint32_t token)
{
    uint32_t low = token & 1 ? words.y : words.x, high = token & 1 ? words.w : words.z;
    return token & 2 ? high : low;
}

/* The two words of a block of 64. */
struct draw_block {
    uint32_t r, r2;

    /* The index of J, the token with the most noise, in the block. */
    __device__ __forceinline__ uint32_t max_noise_index() const { return r2 % GUMBEL_BLOCK; }
};

/* The words of the block that holds a token, among the words of two blocks. */
static __device__ __forceinline__ draw_block draw_block_in(uint4 words, uint32_t token)
{
    return token & GUMBEL_BLOCK ? draw_block{words.z, words.w} : draw_block{words.x, words.y};
}

static __device__ __forceinline__ draw_block draw_block_of(const draw_philox &f, uint32_t token)
{
    return draw_block_in(draw_philox_words(f, token / (2 * GUMBEL_BLOCK), GUMBEL_BLOCK_DOMAIN),
                         token);
}

/* v[at % 4], by selections: an indexed array would be in local memory. */
static __device__ __forceinline__ float draw_select_of_four(const float (&v)[4], int at)
{
    return at & 2 ? (at & 1 ? v[3] : v[2]) : at & 1 ? v[1] : v[0];
}

/* --------------------------------------------------------------------------------- scores ---- */

/* The soft-capped logit. Not inlined: unrolled, its fifty instructions would push the hot loop out
 * of the instruction cache. */
static __device__ __noinline__ float draw_soft_cap_logit(const cuda_params &p, float logit)
{
    float y = logit * p.problem.scale;
    return fabsf(y) < INFINITY ? p.problem.soft_cap * gumbel_tanh(y * p.inverse_cap) : y;
}

/* The exact noise of a token of word r; r is ignored for J. */
static __device__ __forceinline__ float draw_noise_from_words(draw_block block, uint32_t token,
                                                              uint32_t r)
{
    return gumbel_noise_of_word(gumbel_block_noise_of(block.r, block.r2), token, r);
}

/* The exact noise of a token whose words are not known. */
static __device__ __forceinline__ float draw_token_noise(const gumbel_stream &stream,
                                                         uint32_t token)
{
    const draw_philox f = draw_philox_of(stream);
    const draw_block block = draw_block_of(f, token);
    uint32_t r = 0;
    if (token % GUMBEL_BLOCK != block.max_noise_index())
        r = draw_select_word(draw_philox_words(f, token / 4, 0), token);
    return draw_noise_from_words(block, token, r);
}

/* draw_token_noise(), not inlined: one copy for callers that score few tokens. */
static __device__ __noinline__ float draw_token_noise_noinline(gumbel_stream stream, uint32_t token)
{
    return draw_token_noise(stream, token);
}

/* Lower bounds of a block's smallest exponential variate: by its first word, and by its reach. */
static __device__ __forceinline__ float draw_min_exponential_of_word(uint32_t r)
{
    return (float)r * 0x1p-38f;
}

static __device__ __forceinline__ float draw_min_exponential_of_reach(float reach)
{
    return ptx_exp2(-LOG2E * reach);
}

/* Lower bound of the score of J, of transformed logit z, by an upper bound u of its block's
 * uniform; z for a greedy row. E is at most u (1 + 2^-6) below 2^-6, twice the error needed, and at
 * most 33 ln 2 where 1 - u loses its digits; the margin covers the error of the hardware's
 * logarithms. NaN or infinite if z is. */
static __device__ __forceinline__ float draw_score_bound_from_u(bool greedy, float z, float u)
{
    if (greedy)
        return z - fmaf(fabsf(z), 0x1p-20f, 1e-3f);
    float e = u < 0x1p-6f ? fmaf(u, 0x1p-6f, u) : u < 0.99f ? -LN2 * ptx_log2(1.0f - u) : 23.0f;
    float g = LN2 * (6.0f - ptx_log2(e));
    return z + g - fmaf(fabsf(z) + fabsf(g), 0x1p-18f, 2e-3f);
}

/* Lower bound of the score of J by the block's first word. */
static __device__ __forceinline__ float draw_score_bound_of_word(bool greedy, float z, uint32_t r)
{
    return draw_score_bound_from_u(greedy, z, fmaf((float)r, 0x1p-32f, 0x1p-32f));
}

/* Lower bound of the score of J by the block's reach, which may be packed. The bits of a float are
 * up to 0.0861 below its log2. The word r is one less than the bound of u: half of it at r = 1, and
 * zero at r = 0. */
static __device__ __forceinline__ float draw_score_bound_of_reach(bool greedy, float z, float reach)
{
    return draw_score_bound_from_u(greedy, z,
                                   fmaxf(68.5f * draw_min_exponential_of_reach(reach), 0x1p-24f));
}

/* --------------------------------------------------------------------------------- bounds ---- */

/* The threshold that a score sets for other tokens: the score minus a margin of |score| 2^-21 +
 * 1e-3 that covers all rounding below. */
static __device__ __forceinline__ float draw_threshold(float score)
{
    return score - fmaf(fabsf(score), 0x1p-21f, 1e-3f);
}

/* The reach of a block of first word r; 0 for a greedy row. The value includes the contract's
 * margin, 1e-4: 1.94 ulp of a noise of 46 are 8e-6. */
static __device__ __forceinline__ float draw_reach(bool greedy, uint32_t r)
{
    return greedy ? 0.0f : gumbel_noise_bound_of_word(r) + 1e-4f;
}

/* A reach with the index of J in its last bits, which round it up by at most 2^-17 of it. */
static __device__ __forceinline__ float draw_pack_reach(float reach, uint32_t place)
{
    return __uint_as_float(((__float_as_uint(reach) + GUMBEL_BLOCK - 1) & ~(GUMBEL_BLOCK - 1u)) |
                           place);
}

static __device__ __forceinline__ uint32_t draw_place_of_reach(float packed)
{
    return __float_as_uint(packed) % GUMBEL_BLOCK;
}

/* The smallest z with which a token of a block may reach a threshold; -inf if the threshold is. A
 * token of smaller z has a rounded score below the one that set the threshold: that score rounds by
 * |score| 2^-24, and the bound by (|threshold| + 114) 2^-24, together a third of the margin of
 * draw_threshold(). */
static __device__ __forceinline__ float draw_bound(float threshold, float reach)
{
    return threshold - reach;
}

/* Factor that turns a bound of z into one of y, where z is y * factor, rounded once or twice, and
 * factor > 0. +inf if it leaves the range of floats, at temperatures beyond 1e37. */
static __device__ __forceinline__ float draw_bound_unit(float factor)
{
    float unit = 1.0f / factor;
    return unit >= 0x1p-125f && unit <= 0x1p+125f ? unit : INFINITY;
}

/* The smallest y with which a token of a block may reach a threshold. The rounding of z, unit and
 * product, |bound| 2^-22 in all, is subtracted first. */
static __device__ __forceinline__ float draw_bound(float threshold, float reach, float unit)
{
    float bound = draw_bound(threshold, reach);
    return unit < INFINITY ? fmaf(-fabsf(bound), 0x1p-20f, bound) * unit : -INFINITY;
}

/* Whether a token may reach the threshold of a bound, or is NaN or +inf. Given the maximum of
 * several tokens, NaN if one is: whether any of them may. */
static __device__ __forceinline__ bool draw_passes_bound(float y, float bound)
{
    return !(y < bound);
}

/* --------------------------------------------------------------------- filter by own word ---- */

/* Addend of the filter to z log2 e: the threshold and a margin for rounding (docs/maths.md, 6). */
static __device__ __forceinline__ float draw_filter_offset(float threshold)
{
    return fmaf(fabsf(threshold), 0x1p-19f, fmaf(-LOG2E, threshold, 1e-3f));
}

/* Whether a token other than J may reach the threshold of `offset` by its own word, too. Its
 * exponential variate is at least the block's smallest one plus u >= word * 2^-32; the token can
 * win only if that is at most exp(z - threshold). `min_exponential` is at most the block's
 * smallest. Floats round the left side by 2^-22 of it, and `ex2` the right side: the offset's 1e-3
 * covers both. NaN and +inf pass. Not for greedy rows. */
static __device__ __forceinline__ bool draw_passes_filter(float z, float min_exponential,
                                                          uint32_t word, float offset)
{
    return !(fmaf((float)word, 0x1p-32f, min_exponential) > ptx_exp2(fmaf(z, LOG2E, offset)));
}

/* ----------------------------------------------------------------------------- best token ---- */

/* Bits with the order of the float; never 0. */
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

/* The largest finite bound of 32 lanes; -inf if there is none. */
static __device__ __forceinline__ float draw_score_bound_of_warp(float bound)
{
    uint32_t own = fabsf(bound) < INFINITY ? ordered_bits(bound) : ordered_bits(-INFINITY);
    return ordered_float(__reduce_max_sync(~0u, own));
}

#endif
