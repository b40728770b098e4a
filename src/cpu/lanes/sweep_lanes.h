/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the sweep of a sampled row (eq. 3, 4) by blocks of 64 tokens: which tokens may win, and the
 *        exact scores of these, on the sixteen lanes of cpu/isa/lanes_*.h.
 * HOW    No noise of a block is above its reach, which its first word tells. So a block is passed
 *        over where its largest z is below the best score less the reach: four comparisons, in units
 *        of the logits as they lie in memory. The token that has the most noise of its block needs
 *        no word of its own; those of a stretch's 32 blocks are offered before it is swept, so that
 *        the bounds are those of a late row from the start. Tokens that pass wait until sixteen are
 *        there for one call of Philox.
 * SCREEN Of such a token E is at least u of its own word, plus 1/64 of u of its block's. It beats
 *        the best score only if E <= exp(z - best). That is bounded from above by 2^n (1 + f) >=
 *        2^(n + f), made by writing (z - best) log2 e into the bits of a float. What passes that,
 *        about ten tokens a row, is scored exactly: a screen can cost time, never a token.
 * COST   a stretch of 2048 tokens and sample: Philox and reaches 130 vector operations, the first
 *        offers 20, the bounds 4; then a load, a comparison and a half a vector of tokens.
 */
#ifndef GUMBEL_CPU_SWEEP_LANES_H
#define GUMBEL_CPU_SWEEP_LANES_H

#include "cpu/lanes/philox_lanes.h"

#include <float.h>

/* Blocks of a stretch: the words of all come from one call of Philox on sixteen lanes. */
#define STRETCH_BLOCKS 32
/* Samples that share a sweep; their state takes a third of the first-level cache. */
#define SWEEP_SAMPLES 4
/* Tokens that wait: fifteen of a call that did not fill, and those of a block. */
#define WAITING_MOST (CPU_LANES + GUMBEL_BLOCK)

/* 2^23 log2 e, and the exponent bias that makes the bound one of vf_of_word(r). */
#define SCREEN_SLOPE  0x1.715476p+23f
#define SCREEN_OFFSET ((127.0f + WORD_BITS) * 0x1p23f)
/* A z this far above the threshold passes without a bound: exp() of it would not fit a float. */
#define SCREEN_REACH 60.0f

/* The words and bounds of a stretch's blocks, those of even number first, then the odd ones. */
typedef struct sweep_blocks {
    uint32_t r[STRETCH_BLOCKS];
    uint32_t place[STRETCH_BLOCKS]; /* of the token that has the most noise */
    uint32_t r2[STRETCH_BLOCKS];
    float reach[STRETCH_BLOCKS];
    float least[STRETCH_BLOCKS]; /* a logit below cannot win */
} sweep_blocks;

/* Tokens whose z is within their block's reach, and wait for words of their own. */
typedef struct sweep_waiting {
    int count;
    float z[WAITING_MOST];
    uint32_t token[WAITING_MOST];
    uint32_t r[WAITING_MOST]; /* their blocks' first words */
} sweep_waiting;

/* One sample's part of a sweep. */
typedef struct sweep_sample {
    gumbel_stream stream;
    gumbel_summary *summary;
    sweep_blocks blocks;
    sweep_waiting waiting;
} sweep_sample;

/* A row's logits from the first block of a stretch on. */
typedef struct sweep_stretch {
    const float *y;
    float factor;   /* z = y * factor */
    uint32_t token; /* id of y[0], a multiple of 64 */
    int odd;        /* whether the first block has an odd number */
    int blocks;     /* at most STRETCH_BLOCKS - odd */
} sweep_stretch;

/* Where a stretch's block `b` stands in sweep_blocks. */
static inline int sweep_place(const sweep_stretch *s, int b)
{
    int number = b + s->odd;
    return (number & 1) * CPU_LANES + (number >> 1);
}

/* The best score so far less a margin: 2e-3 for the roundings of the screens, and 16 ulp of the
 * best for those of z + g and of a bound in units of the logits. */
static inline float screen_threshold(float best)
{
    return best - fmaf(fabsf(best), 0x1p-19f, 2e-3f);
}

/* gumbel_reach_of_word(), or a little more. */
LANES v16f lanes_reach(v16u r)
{
    v16f bits = vf_of_int(vu_of_bits(vf_of_word(r)));
    float most = GUMBEL_REACH_MOST - (float)(32 - WORD_BITS) * GUMBEL_REACH_SLOPE * 0x1p23f;
    return vf_fma(bits, vf_set(-GUMBEL_REACH_SLOPE), vf_set(most));
}

LANES void make_blocks(sweep_blocks *blocks, const sweep_stretch *s, gumbel_stream stream)
{
    static const uint32_t places[CPU_LANES] = {0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};
    v16u w[4];
    philox_words(w, vu_add(vu_set(s->token >> 7), vu_load(places)), GUMBEL_BLOCK_DOMAIN, stream);
    UNROLLED
    for (int half = 0; half < 2; half++) {
        int at = half * CPU_LANES;
        vu_store(blocks->r + at, w[2 * half]);
        vu_store(blocks->r2 + at, w[2 * half + 1]);
        vu_store(blocks->place + at, vu_and(w[2 * half + 1], vu_set(63)));
        vf_store(blocks->reach + at, lanes_reach(w[2 * half]));
    }
}

/* Offer the token of a block that has the most noise. */
static __attribute__((noinline)) void offer_place(sweep_sample *x, const sweep_stretch *s, int at)
{
    int block = 2 * (at % CPU_LANES) + at / CPU_LANES - s->odd;
    uint32_t i = (uint32_t)block * GUMBEL_BLOCK + x->blocks.place[at];
    float z = s->y[i] * s->factor;
    if (!(z < INFINITY) || z + x->blocks.reach[at] < screen_threshold(x->summary->best_score))
        return;
    gumbel_block_noise b = gumbel_block_noise_of(x->blocks.r[at], x->blocks.r2[at]);
    gumbel_summary_offer(x->summary, z + gumbel_of_exponential(b.least), z,
                         (int32_t)(s->token + i));
}

/* The same for all blocks of a stretch, of which few can win: their z by two gathers. */
LANES void offer_places(sweep_sample *x, const sweep_stretch *s)
{
    static const uint32_t starts[CPU_LANES] = {0,    128,  256,  384,  512,  640,  768,  896,
                                               1024, 1152, 1280, 1408, 1536, 1664, 1792, 1920};
    int numbers = s->blocks + s->odd;
    uint32_t there[2] = {((1u << (numbers + 1) / 2) - 1) & ~(uint32_t)s->odd,
                         (1u << numbers / 2) - 1};
    v16f threshold = vf_set(screen_threshold(x->summary->best_score));
    v16u last = vu_set((uint32_t)s->blocks * GUMBEL_BLOCK - 1);
    UNROLLED
    for (int half = 0; half < 2; half++) {
        int at = half * CPU_LANES;
        uint32_t from = (uint32_t)(half - s->odd) * GUMBEL_BLOCK;
        v16u place = vu_add(vu_add(vu_load(starts), vu_set(from)), vu_load(x->blocks.place + at));
        v16f z = vf_mul(vf_gather(s->y, vu_min(place, last)), vf_set(s->factor));
        v16m low = vf_less(vf_add(z, vf_load(x->blocks.reach + at)), threshold);
        uint32_t pass = there[half] & ~vm_bits(low) & vm_bits(vf_less(vf_set(-INFINITY), z));
        for (; __builtin_expect(pass != 0, 0); pass &= pass - 1)
            offer_place(x, s, at + __builtin_ctz(pass));
    }
}

/* The least logit of each block that may win. -inf never may, so that no bound is below the lowest
 * float; where a product is not a number everything passes. */
LANES void set_bounds(sweep_blocks *blocks, float best, float factor)
{
    v16f threshold = vf_set(screen_threshold(best)), unit = vf_set(1.0f / factor);
    UNROLLED
    for (int half = 0; half < 2; half++) {
        int at = half * CPU_LANES;
        v16f bound = vf_mul(vf_sub(threshold, vf_load(blocks->reach + at)), unit);
        vf_store(blocks->least + at, vf_max(bound, vf_set(-FLT_MAX)));
    }
}

/* Whether all of a block is below the bound; not where there is a NaN. */
LANES int all_below(const float *y, float bound)
{
    v16f b = vf_set(bound);
    v16m low = vm_and(vf_less(vf_load(y), b), vf_less(vf_load(y + 16), b));
    v16m high = vm_and(vf_less(vf_load(y + 32), b), vf_less(vf_load(y + 48), b));
    return vm_all(vm_and(low, high));
}

/* Screen up to sixteen tokens that wait, from `at` on, by their own words; score what passes. */
LANES void score_sixteen(sweep_sample *x, int at)
{
    sweep_waiting *w = &x->waiting;
    int count = w->count - at < CPU_LANES ? w->count - at : CPU_LANES;
    v16u token = vu_load(w->token + at), words[4];
    uint32_t own[4][CPU_LANES], r[CPU_LANES];
    philox_words(words, vu_shift_right(token, 2), 0, x->stream);
    for (int q = 0; q < 4; q++)
        vu_store(own[q], words[q]);
    for (int i = 0; i < CPU_LANES; i++)
        r[i] = own[w->token[at + i] & 3][i];
    float threshold = screen_threshold(x->summary->best_score);
    v16f z = vf_load(w->z + at), above = vf_sub(z, vf_set(threshold));
    v16f bound = vf_fma(above, vf_set(SCREEN_SLOPE), vf_set(SCREEN_OFFSET));
    v16f least = vf_fma(vf_of_word(vu_load(w->r + at)), vf_set(0x1p-6f), vf_of_word(vu_load(r)));
    uint32_t pass = vm_bits(vf_less(least, vf_of_bits(vu_of_float(bound))));
    pass |= ~vm_bits(vf_less(above, vf_set(SCREEN_REACH)));
    for (pass &= (1u << count) - 1; pass != 0; pass &= pass - 1) {
        int i = at + __builtin_ctz(pass);
        cpu_offer(x->summary, x->stream, w->z[i], w->token[i]);
    }
}

/* Score what waits, of which less than sixteen may be left unless `all`. */
static __attribute__((noinline)) void score_waiting(sweep_sample *x, int all)
{
    sweep_waiting *w = &x->waiting;
    int at = 0;
    for (; w->count - at >= CPU_LANES || (all && at < w->count); at += CPU_LANES)
        score_sixteen(x, at);
    int left = w->count > at ? w->count - at : 0;
    for (int i = 0; i < left; i++) {
        w->z[i] = w->z[at + i];
        w->token[i] = w->token[at + i];
        w->r[i] = w->r[at + i];
    }
    w->count = left;
}

/* Let the tokens of block `b` that are not below its bound wait. What has the most noise was offered
 * before. */
static __attribute__((noinline)) void collect_block(sweep_sample *x, const sweep_stretch *s, int b)
{
    int at = sweep_place(s, b);
    const float *y = s->y + b * GUMBEL_BLOCK;
    v16f bound = vf_set(x->blocks.least[at]);
    uint64_t pass = 0;
    UNROLLED
    for (int q = 0; q < 4; q++)
        pass |= (uint64_t)(vm_bits(vf_less(vf_load(y + 16 * q), bound)) ^ 0xffffu) << 16 * q;
    pass &= ~(UINT64_C(1) << x->blocks.place[at]);
    sweep_waiting *w = &x->waiting;
    for (; pass != 0; pass &= pass - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(pass);
        w->z[w->count] = y[i] * s->factor;
        w->token[w->count] = s->token + (uint32_t)b * GUMBEL_BLOCK + i;
        w->r[w->count++] = x->blocks.r[at];
    }
    if (w->count >= CPU_LANES)
        score_waiting(x, 0);
}

/* cpu_flag_block() of y * factor. */
static __attribute__((noinline)) uint32_t flag_scaled(gumbel_summary *s, const float *y,
                                                      float factor)
{
    float z[GUMBEL_BLOCK];
    for (int q = 0; q < 4; q++)
        vf_store(z + 16 * q, vf_mul(vf_load(y + 16 * q), vf_set(factor)));
    return cpu_flag_block(s, z);
}

/* What samples may find in a block that is not below the least of their bounds; what it shows where
 * a logit is NaN or +inf. */
static __attribute__((noinline)) void
collect_samples(sweep_sample *x, int samples, const sweep_stretch *s, int b, gumbel_summary *flags)
{
    const float *y = s->y + b * GUMBEL_BLOCK;
    if (flag_scaled(flags, y, s->factor))
        return;
    for (int i = 0; i < samples; i++)
        if (samples == 1 || !all_below(y, x[i].blocks.least[sweep_place(s, b)]))
            collect_block(&x[i], s, b);
}

/* Words, first offers and bounds of a stretch; least[] is each block's over the samples. */
LANES void begin_stretch(sweep_sample *x, int samples, const sweep_stretch *s,
                         float least[STRETCH_BLOCKS])
{
    vf_store(least, vf_set(INFINITY));
    vf_store(least + CPU_LANES, vf_set(INFINITY));
    for (int i = 0; i < samples; i++) {
        make_blocks(&x[i].blocks, s, x[i].stream);
        offer_places(&x[i], s);
        set_bounds(&x[i].blocks, x[i].summary->best_score, s->factor);
        for (int at = 0; at < STRETCH_BLOCKS; at += CPU_LANES) {
            v16f own = vf_load(x[i].blocks.least + at), lower = vf_load(least + at);
            vf_store(least + at, vf_select(vf_less(own, lower), own, lower));
        }
    }
}

#endif
