/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the sweep of a sampled row (eq. 3, 4) by blocks of 64 tokens: which tokens may win, and
 *        the exact scores of these, on the sixteen lanes of cpu/isa/lanes_*.h.
 * HOW    No noise of a block is above its reach, which its first word tells. So a block is passed
 *        over where its largest z is below the best score less the reach: four comparisons, in
 *        units of the logits as they lie in memory. The token that has the most noise of its block
 *        needs no word of its own; those of a stretch's 32 blocks are offered before it is swept,
 *        so that the bounds are those of a late row from the start. Tokens that pass wait until
 *        sixteen are there for one call of Philox.
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

/* Blocks of a stretch, at most 64: a call of Philox on sixteen lanes makes the words of 32. */
#define STRETCH_BLOCKS 32
/* Samples that share a sweep; their state takes a third of the first-level cache. */
#define SWEEP_SAMPLES 4
/* Tokens that wait: fifteen of a call that did not fill, those of a block, and a vector that is
 * stored whole. */
#define WAITING_MOST (2 * CPU_LANES + GUMBEL_BLOCK)

/* 2^23 log2 e, and the exponent bias that makes the bound one of vf_of_word(r). */
#define SCREEN_SLOPE  0x1.715476p+23f
#define SCREEN_OFFSET ((127.0f + WORD_BITS) * 0x1p23f)
/* A z this far above the threshold passes without a bound: exp() of it would not fit a float. */
#define SCREEN_REACH 60.0f

static const uint32_t lane_numbers[CPU_LANES] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                 8, 9, 10, 11, 12, 13, 14, 15};

/* The words and bounds of a stretch's blocks, from one of an even number on. */
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
    uint32_t z[WAITING_MOST]; /* the bits of a float */
    uint32_t token[WAITING_MOST];
    uint32_t r[WAITING_MOST]; /* their blocks' first words */
} sweep_waiting;

/* One sample's part of a sweep. */
typedef struct sweep_sample {
    gumbel_stream stream;
    gumbel_summary *summary;
    cpu_candidates *candidates; /* NULL: the logits are exact */
    sweep_blocks blocks;
    sweep_waiting waiting;
} sweep_sample;

/* A row's logits from the first block of a stretch on. */
typedef struct sweep_stretch {
    const float *y;
    float factor;   /* z = y * factor */
    uint32_t token; /* id of y[0], a multiple of 64 */
    int begin, end; /* its blocks among those of sweep_blocks; begin is 0 or 1 */
} sweep_stretch;

/* The best score so far less a margin: 2e-3 for the roundings of the screens, and 16 ulp of the
 * best for those of z + g and of a bound in units of the logits. */
static inline float screen_threshold(float best)
{
    return best - fmaf(fabsf(best), 0x1p-19f, 2e-3f);
}

/* gumbel_noise_bound_of_word(), or a little more. */
LANES v16f lanes_reach(v16u r)
{
    v16f bits = vf_of_int(vu_of_bits(vf_of_word(r)));
    float most =
        GUMBEL_NOISE_BOUND_MAX - (float)(32 - WORD_BITS) * GUMBEL_NOISE_BOUND_SLOPE * 0x1p23f;
    return vf_fma(bits, vf_set(-GUMBEL_NOISE_BOUND_SLOPE), vf_set(most));
}

LANES void make_blocks(sweep_blocks *blocks, const sweep_stretch *s, gumbel_stream stream)
{
    UNROLLED
    for (int at = 0; at < STRETCH_BLOCKS; at += 2 * CPU_LANES) {
        v16u w[4],
            counter = vu_add(vu_set((s->token >> 7) + (uint32_t)at / 2), vu_load(lane_numbers));
        philox_words(w, counter, GUMBEL_BLOCK_DOMAIN, stream);
        vu_zip(&w[0], &w[2]);
        vu_zip(&w[1], &w[3]);
        UNROLLED
        for (int half = 0; half < 2; half++) {
            int to = at + half * CPU_LANES;
            vu_store(blocks->r + to, w[2 * half]);
            vu_store(blocks->r2 + to, w[2 * half + 1]);
            vu_store(blocks->place + to, vu_and(w[2 * half + 1], vu_set(63)));
            vf_store(blocks->reach + to, lanes_reach(w[2 * half]));
        }
    }
}

/* Offer the token of block `b` that has the most noise. */
static __attribute__((noinline)) void offer_place(sweep_sample *x, const sweep_stretch *s, int b)
{
    uint32_t i = (uint32_t)(b - s->begin) * GUMBEL_BLOCK + x->blocks.place[b];
    float z = s->y[i] * s->factor;
    if (!(z < INFINITY) || z + x->blocks.reach[b] < screen_threshold(x->summary->best_score))
        return;
    gumbel_block_noise block = gumbel_block_noise_of(x->blocks.r[b], x->blocks.r2[b]);
    cpu_offer(x->summary, x->candidates, z, gumbel_noise_of_exponential(block.least), s->token + i);
}

/* The same for all blocks of a stretch, of which few can win: their z by two gathers. */
LANES void offer_places(sweep_sample *x, const sweep_stretch *s)
{
    static const uint32_t starts[CPU_LANES] = {0,   64,  128, 192, 256, 320, 384, 448,
                                               512, 576, 640, 704, 768, 832, 896, 960};
    uint64_t there = (UINT64_MAX >> (64 - s->end)) & ~(uint64_t)s->begin, pass = 0;
    v16f threshold = vf_set(screen_threshold(x->summary->best_score));
    v16u last = vu_set((uint32_t)(s->end - s->begin) * GUMBEL_BLOCK - 1);
    UNROLLED
    for (int at = 0; at < STRETCH_BLOCKS; at += CPU_LANES) {
        v16u from = vu_add(vu_load(starts), vu_set((uint32_t)(at - s->begin) * GUMBEL_BLOCK));
        v16u place = vu_min(vu_add(from, vu_load(x->blocks.place + at)), last);
        v16f z = vf_mul(vf_gather(s->y, place), vf_set(s->factor));
        v16m low = vf_less(vf_add(z, vf_load(x->blocks.reach + at)), threshold);
        uint32_t high = ~vm_bits(low) & vm_bits(vf_less(vf_set(-INFINITY), z));
        pass |= (uint64_t)high << at;
    }
    for (pass &= there; __builtin_expect(pass != 0, 0); pass &= pass - 1)
        offer_place(x, s, __builtin_ctzll(pass));
}

/* The least logit of each block that may win. -inf never may, so that no bound is below the lowest
 * float; where a product is not a number everything passes. */
LANES void set_bounds(sweep_blocks *blocks, float best, float factor)
{
    v16f threshold = vf_set(screen_threshold(best)), unit = vf_set(1.0f / factor);
    UNROLLED
    for (int at = 0; at < STRETCH_BLOCKS; at += CPU_LANES) {
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
    v16f z = vf_of_bits(vu_load(w->z + at)), above = vf_sub(z, vf_set(threshold));
    v16f bound = vf_fma(above, vf_set(SCREEN_SLOPE), vf_set(SCREEN_OFFSET));
    v16f least = vf_fma(vf_of_word(vu_load(w->r + at)), vf_set(0x1p-6f), vf_of_word(vu_load(r)));
    uint32_t pass = vm_bits(vf_less(least, vf_of_bits(vu_of_float(bound))));
    pass |= ~vm_bits(vf_less(above, vf_set(SCREEN_REACH)));
    for (pass &= (1u << count) - 1; pass != 0; pass &= pass - 1) {
        int i = at + __builtin_ctz(pass);
        cpu_offer(x->summary, x->candidates, gumbel_float_of(w->z[i]),
                  gumbel_noise_of_token(x->stream, w->token[i]), w->token[i]);
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

/* cpu_flag_block() of y * factor. */
static __attribute__((noinline)) uint32_t flag_scaled(gumbel_summary *s, const float *y,
                                                      float factor)
{
    float z[GUMBEL_BLOCK];
    for (int q = 0; q < 4; q++)
        vf_store(z + 16 * q, vf_mul(vf_load(y + 16 * q), vf_set(factor)));
    return cpu_flag_block(s, z);
}

/* None is NaN or +inf. */
LANES int all_count(const v16f z[4])
{
    v16f infinity = vf_set(INFINITY);
    v16m low = vm_and(vf_less(z[0], infinity), vf_less(z[1], infinity));
    v16m high = vm_and(vf_less(z[2], infinity), vf_less(z[3], infinity));
    return vm_all(vm_and(low, high));
}

/* z of a block in four vectors; whether none is NaN or +inf, or else what they show is recorded. */
LANES int load_block(gumbel_summary *flags, const float *y, float factor, v16f z[4])
{
    UNROLLED
    for (int q = 0; q < 4; q++)
        z[q] = vf_mul(vf_load(y + 16 * q), vf_set(factor));
    if (__builtin_expect(all_count(z), 1))
        return 1;
    flag_scaled(flags, y, factor);
    return 0;
}

/* Let the tokens of block `b` that are not below its bound wait; z are all of its. What has the
 * most noise was offered before. */
LANES void collect_block(sweep_sample *x, const sweep_stretch *s, int b, const v16f z[4])
{
    int first = (b - s->begin) * GUMBEL_BLOCK;
    sweep_waiting *w = &x->waiting;
    v16f bound = vf_set(x->blocks.least[b]);
    v16u r = vu_set(x->blocks.r[b]),
         token = vu_add(vu_load(lane_numbers), vu_set(s->token + (uint32_t)first));
    uint64_t place = UINT64_C(1) << x->blocks.place[b];
    UNROLLED
    for (int q = 0; q < 4; q++) {
        uint32_t below = vm_bits(vf_less(vf_load(s->y + first + 16 * q), bound));
        uint32_t pass = ~(below | (uint32_t)(place >> 16 * q)) & 0xffffu;
        vu_keep(w->z + w->count, vu_of_bits(z[q]), pass);
        vu_keep(w->token + w->count, token, pass);
        vu_store(w->r + w->count, r);
        w->count += __builtin_popcount(pass);
        token = vu_add(token, vu_set(16));
    }
    if (w->count >= CPU_LANES)
        score_waiting(x, 0);
}

/* What samples may find in block `b`, which is not below the least of their bounds; what it shows
 * where a logit is NaN or +inf. */
LANES void collect_samples(sweep_sample *x, int samples, const sweep_stretch *s, int b,
                           gumbel_summary *flags)
{
    const float *y = s->y + (b - s->begin) * GUMBEL_BLOCK;
    v16f z[4];
    if (!load_block(flags, y, s->factor, z))
        return;
    for (int i = 0; i < samples; i++)
        if (samples == 1 || !all_below(y, x[i].blocks.least[b]))
            collect_block(&x[i], s, b, z);
}

/* Words, first offers and bounds of a stretch; least[] is each block's over the samples. */
LANES void begin_stretch(sweep_sample *x, int samples, const sweep_stretch *s,
                         float least[STRETCH_BLOCKS])
{
    for (int at = 0; at < STRETCH_BLOCKS; at += CPU_LANES)
        vf_store(least + at, vf_set(INFINITY));
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
