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
        v16f values[4] = {vf_load(v), vf_load(v + 16), vf_load(v + 32), vf_load(v + 48)};
        largest[i] = vf_largest(vf_max(vf_max(values[0], values[1]), vf_max(values[2], values[3])));
        if (__builtin_expect(!is_all_valid(values), 0))
            cpu_flag_invalid_logits(&seen, v);
    }
    return seen.flags;
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
    for (int64_t i = 0; i < s->blocks; i += s->step) {
        if (s->block_maxima[i] < reach)
            continue;
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

/* gumbel_key_of_value(). */
LANES v16u lanes_key(v16f v)
{
    v16f zero = vf_set(0.0f), plus = vf_add(v, zero);
    v16u bits = vu_of_bits(plus);
    v16f negative = vf_of_bits(vu_xor3(bits, vu_set(0xffffffffu), vu_set(0)));
    v16f positive = vf_of_bits(vu_xor3(bits, vu_set(0x80000000u), vu_set(0)));
    return vu_of_bits(vf_select(vf_less(plus, zero), negative, positive));
}

/* Adds the values whose bits are set in `in` to their bins, cpu_find_bin(). A NaN, which a row has
 * only if the caller changes it during the call, stays within the bins. */
LANES void add_lanes_to_bins(const cpu_histogram *h, v16f values, uint32_t in)
{
    uint32_t places[CPU_LANES], high[CPU_LANES], low[CPU_LANES];
    v16u last = vu_set(((uint32_t)CPU_BINS << h->shift) - 1), place;
    if (h->slope > 0.0f)
        place = vu_truncate(vf_mul(vf_sub(values, vf_set(h->low)), vf_set(h->slope)));
    else
        place = vu_add(lanes_key(values), vu_set(0u - h->low_key));
    vu_store(places, vu_min(place, last));
    if (!h->by_mass) {
        for (; in != 0; in &= in - 1)
            h->bins[places[__builtin_ctz(in)] >> h->shift].low++;
        return;
    }
    v16u halves[2];
    lanes_mass(lanes_exp(vf_sub(values, vf_set(h->largest))), &halves[0], &halves[1]);
    vu_store(high, halves[0]);
    vu_store(low, halves[1]);
    for (; in != 0; in &= in - 1) {
        int lane = __builtin_ctz(in);
        cpu_weight *bin = &h->bins[places[lane] >> h->shift];
        bin->high += high[lane];
        bin->low += low[lane];
    }
}

static void add_to_bins(const cpu_span *s, const cpu_histogram *h)
{
    v16f low = vf_set(h->low), high = vf_set(h->high), scale = vf_set(h->scale);
    for (int64_t i = 0; i < s->blocks; i += s->step) {
        if (s->block_maxima[i] * h->scale < h->low)
            continue;
        for (int q = 0; q < 4; q++) {
            v16f values = vf_mul(vf_load(s->v + i * GUMBEL_BLOCK + 16 * q), scale);
            uint32_t out = vm_bits(vf_less(values, low)) | vm_bits(vf_less(high, values));
            if (out != 0xffffu)
                add_lanes_to_bins(h, values, ~out & 0xffffu);
        }
    }
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
    for (int64_t i = 0; i < s->blocks; i += s->step) {
        if (!(s->block_maxima[i] * scale > bound))
            continue;
        for (int q = 0; q < 4; q++) {
            v16f values = vf_mul(vf_load(s->v + i * GUMBEL_BLOCK + 16 * q), times);
            count += __builtin_popcount(vm_bits(vf_less(lowest, values)));
        }
    }
    return count;
}

#endif
