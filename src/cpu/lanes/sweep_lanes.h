/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Sweeps a sampled row (eq. 3, 4) by blocks of 64 tokens: finds the tokens that may win and
 *        scores them exactly, on the sixteen lanes of cpu/isa/lanes_*.h.
 * HOW    No noise of a block exceeds its reach, which the block's first word determines. A block is
 *        skipped if its largest z is below the best score less the reach: four comparisons, in
 *        units of the logits in memory. The token with the most noise of its block requires no word
 *        of its own. These tokens of a segment's 32 blocks are offered before the segment is swept,
 *        so that the thresholds are high from the start. Tokens that pass are collected until
 *        sixteen fill one call of Philox.
 * FILTER E of such a token is at least u of its own word plus 1/64 of u of its block's word. The
 *        token beats the best score only if E <= exp(z - best). An upper bound of that is 2^n (1 +
 *        f) >= 2^(n + f), made by writing (z - best) log2 e into the bits of a float. The tokens
 *        that pass, about ten a row, are scored exactly: the filter can cost time, never a token.
 * COST   A segment of 2048 tokens and one sample: Philox and reaches 130 vector operations, the
 *        first offers 20, the thresholds 4; then a load, a comparison and a half a vector of
 *        tokens.
 */
#ifndef GUMBEL_CPU_SWEEP_LANES_H
#define GUMBEL_CPU_SWEEP_LANES_H

#include "cpu/lanes/philox_lanes.h"

#include <float.h>

/* Blocks of a segment, at most 64: a call of Philox on sixteen lanes makes the words of 32. */
#define SEGMENT_BLOCKS 32
/* Samples that share a sweep; their state takes a third of the first-level cache. */
#define SWEEP_SAMPLES 4
/* Maximum number of waiting tokens: fifteen of an unfilled call, a block, and one vector that is
 * stored whole. */
#define WAITING_MAX (2 * CPU_LANES + GUMBEL_BLOCK)

/* 2^23 log2 e, and the exponent bias that makes the bound comparable with vf_of_word(r). */
#define FILTER_SLOPE  0x1.715476p+23f
#define FILTER_OFFSET ((127.0f + WORD_BITS) * 0x1p23f)
/* A z this far above the threshold passes without a bound, as exp(z - best) would overflow. */
#define FILTER_REACH 60.0f

static const uint32_t lane_numbers[CPU_LANES] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                 8, 9, 10, 11, 12, 13, 14, 15};

/* Words and thresholds of the blocks of a segment; the first one is even. */
typedef struct sweep_blocks {
    uint32_t r[SEGMENT_BLOCKS];
    uint32_t place[SEGMENT_BLOCKS]; /* of the token with the most noise */
    uint32_t r2[SEGMENT_BLOCKS];
    float reach[SEGMENT_BLOCKS];
    float min_logits[SEGMENT_BLOCKS]; /* a lower logit cannot win */
} sweep_blocks;

/* Tokens that passed the threshold of their block and wait for words of their own. */
typedef struct sweep_waiting {
    int count;
    uint32_t z[WAITING_MAX]; /* bits of a float */
    uint32_t token[WAITING_MAX];
    uint32_t r[WAITING_MAX]; /* first word of the token's block */
} sweep_waiting;

/* State of one sample. */
typedef struct sweep_sample {
    gumbel_stream stream;
    gumbel_summary *summary;
    cpu_candidates *candidates; /* NULL if the logits are exact */
    sweep_blocks blocks;
    sweep_waiting waiting;
} sweep_sample;

/* A row's logits from the first block of a segment on. */
typedef struct sweep_segment {
    const float *y;
    float factor;   /* z = y * factor */
    uint32_t token; /* id of y[0], a multiple of 64 */
    int begin, end; /* its blocks in sweep_blocks; begin is 0 or 1 */
} sweep_segment;

/* The best score so far; with candidates that of all threads. */
static inline float get_best_score(const sweep_sample *x)
{
    return x->candidates ? cpu_get_min_upper(x->candidates) : x->summary->best_score;
}

/* The best score so far less a margin: 2e-3 for the roundings of the filters, and 16 ulp of the
 * best score for the roundings of z + g and of a threshold in units of the logits. */
static inline float lower_threshold(float best)
{
    return best - fmaf(fabsf(best), 0x1p-19f, 2e-3f);
}

/* gumbel_noise_bound_of_word(), or slightly more. */
LANES v16f lanes_reach(v16u r)
{
    v16f bits = vf_of_int(vu_of_bits(vf_of_word(r)));
    float max_reach =
        GUMBEL_NOISE_BOUND_MAX - (float)(32 - WORD_BITS) * GUMBEL_NOISE_BOUND_SLOPE * 0x1p23f;
    return vf_fma(bits, vf_set(-GUMBEL_NOISE_BOUND_SLOPE), vf_set(max_reach));
}

LANES void make_blocks(sweep_blocks *blocks, const sweep_segment *s, gumbel_stream stream)
{
    UNROLLED
    for (int at = 0; at < SEGMENT_BLOCKS; at += 2 * CPU_LANES) {
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

/* Offers the token with the most noise of block `b`. */
NOT_INLINED void offer_place(sweep_sample *x, const sweep_segment *s, int b)
{
    uint32_t i = (uint32_t)(b - s->begin) * GUMBEL_BLOCK + x->blocks.place[b];
    float z = s->y[i] * s->factor;
    if (!(z < INFINITY) || z + x->blocks.reach[b] < lower_threshold(get_best_score(x)))
        return;
    gumbel_block_noise block = gumbel_block_noise_of(x->blocks.r[b], x->blocks.r2[b]);
    cpu_offer_token(x->summary, x->candidates, z, gumbel_noise_of_exponential(block.least),
                    s->token + i);
}

/* offer_place() for all blocks of a segment. Few can win; two gathers load their z. */
LANES void offer_places(sweep_sample *x, const sweep_segment *s)
{
    static const uint32_t starts[CPU_LANES] = {0,   64,  128, 192, 256, 320, 384, 448,
                                               512, 576, 640, 704, 768, 832, 896, 960};
    uint64_t there = (UINT64_MAX >> (64 - s->end)) & ~(uint64_t)s->begin, pass = 0;
    v16f threshold = vf_set(lower_threshold(get_best_score(x)));
    v16u last = vu_set((uint32_t)(s->end - s->begin) * GUMBEL_BLOCK - 1);
    UNROLLED
    for (int at = 0; at < SEGMENT_BLOCKS; at += CPU_LANES) {
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

/* Sets the lowest logit of each block that may win. -inf never wins, so no threshold is below the
 * lowest finite float. If a product is NaN, everything passes. */
LANES void set_thresholds(sweep_blocks *blocks, float best, float factor)
{
    v16f threshold = vf_set(lower_threshold(best)), unit = vf_set(1.0f / factor);
    UNROLLED
    for (int at = 0; at < SEGMENT_BLOCKS; at += CPU_LANES) {
        v16f bound = vf_mul(vf_sub(threshold, vf_load(blocks->reach + at)), unit);
        vf_store(blocks->min_logits + at, vf_max(bound, vf_set(-FLT_MAX)));
    }
}

/* Whether all values of a block are below the bound; 0 if one is NaN. */
LANES int is_all_below(const float *y, float bound)
{
    v16f b = vf_set(bound);
    v16m low = vm_and(vf_less(vf_load(y), b), vf_less(vf_load(y + 16), b));
    v16m high = vm_and(vf_less(vf_load(y + 32), b), vf_less(vf_load(y + 48), b));
    return vm_all(vm_and(low, high));
}

/* Filters up to sixteen waiting tokens, from `at` on, by their own words; scores the ones that
 * pass. */
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
    float threshold = lower_threshold(get_best_score(x));
    v16f z = vf_of_bits(vu_load(w->z + at)), above = vf_sub(z, vf_set(threshold));
    v16f bound = vf_fma(above, vf_set(FILTER_SLOPE), vf_set(FILTER_OFFSET));
    v16f min_exponential =
        vf_fma(vf_of_word(vu_load(w->r + at)), vf_set(0x1p-6f), vf_of_word(vu_load(r)));
    uint32_t pass = vm_bits(vf_less(min_exponential, vf_of_bits(vu_of_float(bound))));
    pass |= ~vm_bits(vf_less(above, vf_set(FILTER_REACH)));
    for (pass &= (1u << count) - 1; pass != 0; pass &= pass - 1) {
        int i = at + __builtin_ctz(pass);
        cpu_offer_token(x->summary, x->candidates, gumbel_float_of(w->z[i]),
                        gumbel_noise_of_token(x->stream, w->token[i]), w->token[i]);
    }
}

/* Scores waiting tokens: all of them, or in groups of sixteen, so that up to fifteen keep
 * waiting. */
NOT_INLINED void score_waiting(sweep_sample *x, int all)
{
    sweep_waiting *w = &x->waiting;
    int at = 0;
    for (; w->count - at >= CPU_LANES || (all && at < w->count); at += CPU_LANES)
        score_sixteen(x, at);
    int remaining = w->count > at ? w->count - at : 0;
    for (int i = 0; i < remaining; i++) {
        w->z[i] = w->z[at + i];
        w->token[i] = w->token[at + i];
        w->r[i] = w->r[at + i];
    }
    w->count = remaining;
}

/* cpu_flag_invalid_logits() of y * factor. */
NOT_INLINED uint32_t flag_scaled_block(gumbel_summary *s, const float *y, float factor)
{
    float z[GUMBEL_BLOCK];
    for (int q = 0; q < 4; q++)
        vf_store(z + 16 * q, vf_mul(vf_load(y + 16 * q), vf_set(factor)));
    return cpu_flag_invalid_logits(s, z);
}

/* Whether no value is NaN or +inf. */
LANES int is_all_valid(const v16f z[4])
{
    v16f infinity = vf_set(INFINITY);
    v16m low = vm_and(vf_less(z[0], infinity), vf_less(z[1], infinity));
    v16m high = vm_and(vf_less(z[2], infinity), vf_less(z[3], infinity));
    return vm_all(vm_and(low, high));
}

/* Loads z of a block into four vectors. Returns 0 if one is NaN or +inf, and records it. */
LANES int load_valid_block(gumbel_summary *flags, const float *y, float factor, v16f z[4])
{
    UNROLLED
    for (int q = 0; q < 4; q++)
        z[q] = vf_mul(vf_load(y + 16 * q), vf_set(factor));
    if (__builtin_expect(is_all_valid(z), 1))
        return 1;
    flag_scaled_block(flags, y, factor);
    return 0;
}

/* Collects the tokens of block `b` that reach its threshold; z is all of the block. The token with
 * the most noise was offered before. */
LANES void collect_block(sweep_sample *x, const sweep_segment *s, int b, const v16f z[4])
{
    int first = (b - s->begin) * GUMBEL_BLOCK;
    sweep_waiting *w = &x->waiting;
    v16f bound = vf_set(x->blocks.min_logits[b]);
    v16u r = vu_set(x->blocks.r[b]),
         token = vu_add(vu_load(lane_numbers), vu_set(s->token + (uint32_t)first));
    uint64_t place = UINT64_C(1) << x->blocks.place[b];
    UNROLLED
    for (int q = 0; q < 4; q++) {
        uint32_t below = vm_bits(vf_less(vf_load(s->y + first + 16 * q), bound));
        uint32_t pass = ~(below | (uint32_t)(place >> 16 * q)) & 0xffffu;
        vu_compress_store(w->z + w->count, vu_of_bits(z[q]), pass);
        vu_compress_store(w->token + w->count, token, pass);
        vu_store(w->r + w->count, r);
        w->count += __builtin_popcount(pass);
        token = vu_add(token, vu_set(16));
    }
    if (w->count >= CPU_LANES)
        score_waiting(x, 0);
}

/* Collects block `b` for each sample whose threshold it reaches, or records NaN and +inf. */
LANES void collect_samples(sweep_sample *x, int samples, const sweep_segment *s, int b,
                           gumbel_summary *flags)
{
    const float *y = s->y + (b - s->begin) * GUMBEL_BLOCK;
    v16f z[4];
    if (!load_valid_block(flags, y, s->factor, z))
        return;
    for (int i = 0; i < samples; i++)
        if (samples == 1 || !is_all_below(y, x[i].blocks.min_logits[b]))
            collect_block(&x[i], s, b, z);
}

/* Computes words, first offers and thresholds of a segment; min_logits[] is the lowest threshold of
 * each block over the samples. */
LANES void begin_segment(sweep_sample *x, int samples, const sweep_segment *s,
                         float min_logits[SEGMENT_BLOCKS])
{
    for (int at = 0; at < SEGMENT_BLOCKS; at += CPU_LANES)
        vf_store(min_logits + at, vf_set(INFINITY));
    for (int i = 0; i < samples; i++) {
        make_blocks(&x[i].blocks, s, x[i].stream);
        offer_places(&x[i], s);
        set_thresholds(&x[i].blocks, get_best_score(&x[i]), s->factor);
        for (int at = 0; at < SEGMENT_BLOCKS; at += CPU_LANES) {
            v16f own = vf_load(x[i].blocks.min_logits + at), lower = vf_load(min_logits + at);
            vf_store(min_logits + at, vf_select(vf_less(own, lower), own, lower));
        }
    }
}

#endif
