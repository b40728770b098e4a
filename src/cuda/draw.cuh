/* SPDX-License-Identifier: Apache-2.0
 *
 * The draw inside a kernel: a row's parameters and best token in shared memory, Philox for four
 * tokens, the screen, and the exact score of what passes (docs/maths.md, sections 2, 3 and 6).
 */
#ifndef GUMBEL_CUDA_DRAW_CUH
#define GUMBEL_CUDA_DRAW_CUH

#include "core/summary.h"
#include "cuda/cuda_params.h"
#include "cuda/ptx.cuh"

#define LOG2E 1.44269504088896341f
#define LN2   0.69314718055994531f

/* The best token of a row and sample so far, and what the row's logits showed. */
struct draw_best {
    float score, z;
    int id;
    uint32_t flags;
    int lock;
    gumbel_stream stream;
};

/* What the hot loop reads of a row and sample. The first two Philox rounds of a row have products
 * that are the same for all tokens; `first` .. `fourth` are what is left of them. 48 bytes: eight
 * neighbours' sixteen bytes then lie in eight different groups of banks (64 bytes cost 17 times
 * the loads). */
struct __align__(16) draw_state
{
    float scale; /* logit to z where there is no soft-cap: by scale, then by */
    float inverse_temperature;
    float threshold;     /* no token below can win; -inf at first */
    uint32_t ones;       /* set in u's bits: all for a greedy row, so that u is just below 1 */
    uint32_t key0, key1; /* of round 2 */
    uint32_t first, second, third, fourth;
    draw_best *best;
};
static_assert(sizeof(draw_state) == 48,
              "the stride that keeps neighbours out of each other's banks");

/* A column that no row uses: nothing passes its screen, or wins. */
static __device__ __forceinline__ void draw_state_idle(draw_state *s, draw_best *best)
{
    *s = draw_state();
    *best = draw_best();
    s->threshold = 1e30f;
    s->best = best;
    best->score = INFINITY;
}

static __device__ __forceinline__ void
draw_state_init(draw_state *s, draw_best *best, const gumbel_problem *p, int64_t b, int sample)
{
    gumbel_row row = gumbel_problem_row(p, b);
    row.stream.sample += (uint32_t)sample;
    uint32_t key0 = (uint32_t)row.stream.seed, key1 = (uint32_t)(row.stream.seed >> 32);
    uint64_t product = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_1 * row.stream.sample;
    uint32_t word = (uint32_t)(product >> 32) ^ row.stream.position ^ key0;
    draw_state_idle(s, best);
    s->scale = p->soft_cap == 0.0f ? p->scale : 1.0f;
    s->inverse_temperature = row.inverse_temperature;
    s->threshold = -INFINITY;
    s->ones = row.greedy ? 0x7fffffu : 0;
    s->key0 = key0 + 2 * GUMBEL_PHILOX_WEYL_0;
    s->key1 = key1 + 2 * GUMBEL_PHILOX_WEYL_1;
    s->first = row.stream.domain ^ key1;
    s->second = (uint32_t)product ^ (key0 + GUMBEL_PHILOX_WEYL_0);
    product = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_0 * word;
    s->third = (uint32_t)(product >> 32) ^ (key1 + GUMBEL_PHILOX_WEYL_1);
    s->fourth = (uint32_t)product;
    best->score = best->z = -INFINITY;
    best->id = -1;
    best->stream = row.stream;
}

/* The words of tokens 4 * block .. + 3. */
static __device__ __forceinline__ uint4 draw_words(const draw_state *s, uint32_t block)
{
    uint64_t p0 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_0 * block;
    uint64_t p1 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_1 * ((uint32_t)(p0 >> 32) ^ s->first);
    uint4 c = {(uint32_t)(p1 >> 32) ^ s->second, (uint32_t)p1, s->third ^ (uint32_t)p0, s->fourth};
    uint32_t key0 = s->key0, key1 = s->key1;
#pragma unroll
    for (int i = 2; i < GUMBEL_PHILOX_ROUNDS; i++) {
        p0 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_0 * c.x;
        p1 = (uint64_t)GUMBEL_PHILOX_MULTIPLIER_1 * c.z;
        c = {(uint32_t)(p1 >> 32) ^ c.y ^ key0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c.w ^ key1,
             (uint32_t)p0};
        key0 += GUMBEL_PHILOX_WEYL_0;
        key1 += GUMBEL_PHILOX_WEYL_1;
    }
    return c;
}

/* The soft-capped logit, out of line: unrolled, its fifty instructions would crowd the hot loop
 * out of the instruction cache. */
static __device__ __noinline__ float draw_capped(const cuda_params &p, float logit)
{
    float y = logit * p.problem.scale;
    return fabsf(y) < INFINITY ? p.problem.soft_cap * gumbel_tanh(y * p.inverse_cap) : y;
}

/* What the screen adds to z log2 e: the threshold, and a margin for rounding (docs/maths.md, 6). */
static __device__ __forceinline__ float draw_offset(float threshold)
{
    return fmaf(fabsf(threshold), 0x1p-19f, fmaf(-LOG2E, threshold, 1e-3f));
}

/* Whether a token may reach the threshold behind `offset`. 1 + u to 23 bits, from below, against
 * 1 + exp(z - threshold). NaN and +inf pass. */
static __device__ __forceinline__ bool draw_screen(float z, uint32_t r, uint32_t ones, float offset)
{
    float bound = 1.0f + ptx_exp2(fmaf(z, LOG2E, offset));
    return !(__uint_as_float(r >> 9 | ones | 0x3f800000u) > bound);
}

/* Score a token exactly and keep it if it is the best so far. */
static __device__ __noinline__ void draw_offer(draw_state *s, float z, uint32_t token)
{
    draw_best *best = s->best;
    volatile draw_best *v = best;
    if (!(z < INFINITY)) {
        atomicOr(&best->flags, isnan(z) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE);
        return;
    }
    float score = s->ones ? z : z + gumbel_of_token(best->stream, token);
    if (score < v->score || score == -INFINITY)
        return;
    for (bool done = false; !done;) {
        if (atomicCAS(&best->lock, 0, 1) != 0)
            continue;
        __threadfence_block();
        if (score > v->score || (score == v->score && (int)token < v->id)) {
            v->score = score;
            v->z = z;
            v->id = (int)token;
            *(volatile float *)&s->threshold = score - fmaf(fabsf(score), 0x1p-21f, 1e-3f);
        }
        __threadfence_block();
        atomicExch(&best->lock, 0);
        done = true;
    }
}

/* A score that the token surely reaches: g >= ln((1 - u) / u), less a margin. */
static __device__ __forceinline__ float draw_floor(const draw_state *s, float z, uint32_t r)
{
    if (s->ones)
        return z - fmaf(fabsf(z), 0x1p-20f, 1e-3f);
    float u = fmaf((float)r, 0x1p-32f, 0x1p-33f);
    float g = LN2 * (ptx_log2(1.0f - u) - ptx_log2(u));
    return z + g - fmaf(fabsf(z) + fabsf(g), 0x1p-18f, 2e-3f);
}

/* Raise a threshold in shared memory to `floor`, which may be NaN or infinite: then nothing
 * happens. */
static __device__ __forceinline__ void draw_raise(draw_state *s, float floor)
{
    if (!(fabsf(floor) < INFINITY))
        return;
    int *bits = (int *)&s->threshold, seen = *(volatile int *)bits;
    while (floor > __int_as_float(seen)) {
        int found = atomicCAS(bits, seen, __float_as_int(floor));
        if (found == seen)
            break;
        seen = found;
    }
}

#endif
