/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Passes over a row's values for truncation, ranks and lists (docs/maths.md, section 9), on
 *        the sixteen lanes of cpu/isa/lanes_*.h. All results are values or integers.
 * COST   find_maxima() 2 operations a vector, at the speed of memory. sum_masses() 15 for the
 *        exponential and 11 for the fixed point. add_to_bins() 3, and some nanoseconds for each
 *        token in its range. A block whose maximum is out of range costs one comparison.
 */
#ifndef GUMBEL_CPU_TRUNCATE_LANES_H
#define GUMBEL_CPU_TRUNCATE_LANES_H

#include "cpu/lanes/draw_lanes.h"

static uint32_t find_maxima(const float *v, int64_t blocks, float *largest)
{
    gumbel_summary seen = {0};
    for (int64_t i = 0; i < blocks; i++, v += GUMBEL_BLOCK) {
        prefetch_ahead(v);
        v16f values[4] = {vf_load(v), vf_load(v + 16), vf_load(v + 32), vf_load(v + 48)};
        largest[i] = vf_largest(vf_max(vf_max(values[0], values[1]), vf_max(values[2], values[3])));
        if (__builtin_expect(!is_all_valid(values), 0))
            cpu_flag_invalid_logits(&seen, v);
    }
    return seen.flags;
}

/* Bits of the maxima of `count` blocks, of which sixteen are read, that reach `bound` if they are
 * multiplied by `scale`. */
LANES uint32_t find_vector_from(const float *maxima, int64_t count, float scale, float bound)
{
    uint32_t bits = 0;
    if (count >= CPU_LANES)
        return ~vm_bits(vf_less(vf_mul(vf_load(maxima), vf_set(scale)), vf_set(bound))) & 0xffffu;
    for (int i = 0; i < (int)count; i++)
        bits |= (uint32_t) !(maxima[i] * scale < bound) << i;
    return bits;
}

static uint64_t find_blocks_from(const float *maxima, int64_t count, float bound)
{
    uint64_t bits = 0;
    for (int i = 0; i < GUMBEL_BLOCK && i < count; i += CPU_LANES)
        bits |= (uint64_t)find_vector_from(maxima + i, count - i, 1.0f, bound) << i;
    return bits;
}

/* The blocks of a span that a kernel reads, if their maximum times `scale` reaches `bound`. */
typedef struct span_blocks {
    const cpu_span *span;
    float scale, bound; /* above -inf, so that blocks without tokens are not read */
    int64_t next;       /* a multiple of 16 */
    uint32_t bits;      /* of the sixteen blocks before it that remain */
} span_blocks;

/* The index of the next block, or -1. */
LANES int64_t take_block(span_blocks *at)
{
    const cpu_span *s = at->span;
    _Static_assert(CPU_SAMPLE_STEP == CPU_LANES, "a sample has the first block of each vector");
    while (at->bits == 0) {
        if (at->next >= s->blocks)
            return -1;
        at->bits = find_vector_from(s->block_maxima + at->next,
                                    s->step == 1 ? s->blocks - at->next : 1, at->scale, at->bound);
        at->next += CPU_LANES;
    }
    const int64_t block = at->next - CPU_LANES + __builtin_ctz(at->bits);
    at->bits &= at->bits - 1;
    return block;
}

/* gumbel_token_mass() in two halves, both exact. */
LANES void lanes_mass(v16f e, v16u *high, v16u *low)
{
    v16f units = vf_mul(e, vf_set(0x1p30f));
    *high = vu_truncate(units);
    *low = vu_truncate(vf_mul(vf_sub(units, vf_of_int(*high)), vf_set(0x1p31f)));
}

LANES v16f lanes_at_least(v16f v, v16f bound, v16f yes, v16f no)
{
    return vf_select(vf_less(v, bound), no, yes);
}

static int64_t sum_masses(const cpu_span *s, float bound, float largest, cpu_weight *sum)
{
    int64_t count = 0;
    float reach = largest - GUMBEL_MASS_REACH > bound ? largest - GUMBEL_MASS_REACH : bound;
    v16u highs = vu_set(0), lows = vu_set(0);
    v16f m = vf_set(largest), lowest = vf_set(bound), nothing = vf_set(-INFINITY);
    span_blocks at = {s, 1.0f, reach, 0, 0};
    for (int64_t i; (i = take_block(&at)) >= 0;) {
        const float *v = s->v + i * GUMBEL_BLOCK;
        UNROLLED
        for (int pair = 0; pair < 2; pair++, v += 32) {
            v16f a = vf_load(v), b = vf_load(v + 16);
            v16u high[2], low[2];
            uint32_t below = vm_bits(vf_less(a, lowest)) << 16 | vm_bits(vf_less(b, lowest));
            count += 32 - __builtin_popcount(below);
            a = lanes_at_least(a, lowest, vf_sub(a, m), nothing);
            b = lanes_at_least(b, lowest, vf_sub(b, m), nothing);
            lanes_mass(lanes_exp(a), &high[0], &low[0]);
            lanes_mass(lanes_exp(b), &high[1], &low[1]);
            /* Two halves of at most 2^31 fit in a word. */
            highs = vu_widen_add(highs, vu_add(high[0], high[1]));
            lows = vu_widen_add(lows, vu_add(low[0], low[1]));
        }
    }
    sum->high += vu_widen_total(highs);
    sum->low += vu_widen_total(lows);
    return count;
}

static int collect_values(const cpu_span *s, float bound, float *out, int room, int *count)
{
    const v16f lowest = vf_set(bound);
    span_blocks at = {s, 1.0f, bound, 0, 0};
    for (int64_t i; (i = take_block(&at)) >= 0;) {
        if (*count + GUMBEL_BLOCK + CPU_LANES > room)
            return 0;
        UNROLLED
        for (int q = 0; q < 4; q++) {
            const v16f v = vf_load(s->v + i * GUMBEL_BLOCK + 16 * q);
            const uint32_t in = ~vm_bits(vf_less(v, lowest)) & 0xffffu;
            vu_compress_store((uint32_t *)out + *count, vu_of_bits(v), in);
            *count += __builtin_popcount(in);
        }
    }
    return 1;
}

/* gumbel_key_of_value(). */
LANES v16u lanes_key(v16f v)
{
    v16f zero = vf_set(0.0f), plus = vf_add(v, zero);
    v16u bits = vu_of_bits(plus);
    v16f negative = vf_of_bits(vu_xor3(bits, vu_set(0xffffffffu), vu_set(0)));
    v16f positive = vf_of_bits(vu_xor3(bits, vu_set(0x80000000u), vu_set(0)));
    return vu_of_bits(vf_select(vf_less(plus, zero), negative, positive));
}

/* gumbel_typical_distance(), negative. */
LANES v16f lanes_negative_distance(v16f v, v16f largest, v16f centre)
{
    v16f difference = vf_sub(vf_sub(v, largest), centre), zero = vf_set(0.0f);
    v16f opposite = vf_sub(zero, difference);
    return vf_select(vf_less(difference, opposite), difference, opposite);
}

/* The values that a histogram of scaled values v distributes. */
LANES v16f lanes_distributed(const cpu_histogram *h, v16f v, int by_distance)
{
    return by_distance ? lanes_negative_distance(v, vf_set(h->largest), vf_set(h->centre)) : v;
}

/* A value, at least -FLT_MAX, below which all negative distances are below the histogram's. The
 * margin covers the roundings of a distance and of this. */
static float find_farthest_value(const cpu_histogram *h)
{
    const float margin = (fabsf(h->largest) + fabsf(h->centre) + fabsf(h->low)) * 0x1p-20f;
    const float value = (h->largest + (h->low + h->centre)) - margin;
    return value > -FLT_MAX ? value : -FLT_MAX;
}

/* The bins of values, cpu_find_bin(), before the shift. A NaN, which a row has only if the caller
 * changes it during the call, stays within the bins. */
LANES v16u lanes_places(const cpu_histogram *h, v16f values)
{
    v16u last = vu_set(((uint32_t)CPU_BINS << h->shift) - 1), place;
    if (h->slope > 0.0f)
        place = vu_truncate(vf_mul(vf_sub(values, vf_set(h->low)), vf_set(h->slope)));
    else
        place = vu_add(lanes_key(values), vu_set(0u - h->low_key));
    return vu_min(place, last);
}

/* Values in the range of a histogram, until they fill a vector. */
typedef struct bins_waiting {
    int count;
    float
        v[CPU_LANES + GUMBEL_BLOCK + CPU_LANES]; /* an unfilled vector, a block, one stored whole */
} bins_waiting;

/* Adds the masses of all full vectors, or of all values, to the bins. Few lanes of most vectors are
 * in range, so this computes a third of the exponentials, and predicts branches. */
LANES void add_waiting_masses(const cpu_histogram *h, int by_distance, bins_waiting *w, int all)
{
    uint32_t places[CPU_LANES], high[CPU_LANES], low[CPU_LANES];
    int at = 0;
    for (; at + CPU_LANES <= w->count || (all && at < w->count); at += CPU_LANES) {
        const v16f v = vf_load(w->v + at);
        const int count = w->count - at < CPU_LANES ? w->count - at : CPU_LANES;
        v16u halves[2];
        vu_store(places, lanes_places(h, lanes_distributed(h, v, by_distance)));
        lanes_mass(lanes_exp(vf_sub(v, vf_set(h->largest))), &halves[0], &halves[1]);
        vu_store(high, halves[0]);
        vu_store(low, halves[1]);
        for (int lane = 0; lane < count; lane++) {
            cpu_weight *bin = &h->bins[places[lane] >> h->shift];
            bin->high += high[lane];
            bin->low += low[lane];
        }
    }
    vf_store(w->v, vf_load(w->v + at));
    w->count -= at;
}

/* `by_mass` and `by_distance` are constants of each instance. */
LANES void add_span_to_bins(const cpu_span *s, const cpu_histogram *h, int by_mass, int by_distance)
{
    const v16f low = vf_set(h->low), high = vf_set(h->high), scale = vf_set(h->scale);
    bins_waiting waiting;
    waiting.count = 0;
    span_blocks at = {s, h->scale, by_distance ? find_farthest_value(h) : h->low, 0, 0};
    for (int64_t i; (i = take_block(&at)) >= 0;) {
        for (int q = 0; q < 4; q++) {
            const v16f v = vf_mul(vf_load(s->v + i * GUMBEL_BLOCK + 16 * q), scale);
            const v16f values = lanes_distributed(h, v, by_distance);
            const uint32_t out = vm_bits(vf_less(values, low)) | vm_bits(vf_less(high, values));
            uint32_t in = ~out & 0xffffu, places[CPU_LANES];
            if (in != 0 && by_mass) {
                vu_compress_store((uint32_t *)waiting.v + waiting.count, vu_of_bits(v), in);
                waiting.count += __builtin_popcount(in);
            } else if (in != 0) {
                vu_store(places, lanes_places(h, values));
                for (; in != 0; in &= in - 1)
                    h->bins[places[__builtin_ctz(in)] >> h->shift].low++;
            }
        }
        if (by_mass && waiting.count >= CPU_LANES)
            add_waiting_masses(h, by_distance, &waiting, 0);
    }
    if (by_mass)
        add_waiting_masses(h, by_distance, &waiting, 1);
}

static void add_to_bins(const cpu_span *s, const cpu_histogram *h)
{
    if (h->by_distance && h->by_mass)
        add_span_to_bins(s, h, 1, 1);
    else if (h->by_distance)
        add_span_to_bins(s, h, 0, 1);
    else if (h->by_mass)
        add_span_to_bins(s, h, 1, 0);
    else
        add_span_to_bins(s, h, 0, 0);
}

static int filter_block(const float *v, float scale, float bound, float *out)
{
    int survivors = 0;
    v16f lowest = vf_set(bound), times = vf_set(scale), nothing = vf_set(-INFINITY);
    for (int i = 0; i < GUMBEL_BLOCK; i += 16) {
        v16f values = vf_load(v + i);
        values = lanes_at_least(values, lowest, vf_mul(values, times), nothing);
        survivors += __builtin_popcount(vm_bits(vf_less(nothing, values)));
        vf_store(out + i, values);
    }
    return survivors;
}

static int64_t count_above(const cpu_span *s, float scale, float bound)
{
    int64_t count = 0;
    v16f times = vf_set(scale), lowest = vf_set(bound);
    span_blocks at = {s, scale, bound > -FLT_MAX ? bound : -FLT_MAX, 0, 0};
    for (int64_t i; (i = take_block(&at)) >= 0;) {
        for (int q = 0; q < 4; q++) {
            v16f values = vf_mul(vf_load(s->v + i * GUMBEL_BLOCK + 16 * q), times);
            count += __builtin_popcount(vm_bits(vf_less(lowest, values)));
        }
    }
    return count;
}

#endif
