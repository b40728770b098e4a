/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the passes over a row's values that truncation, ranks and lists are made of
 *        (docs/maths.md, section 9), on the sixteen lanes of cpu/lanes_*.h. All results are values
 *        or integers.
 * COST   survey() 2 operations a vector, at the speed of memory. weigh() 15 for the exponential and
 *        11 for the fixed point. tally() 3, and some nanoseconds a token in its range. Blocks whose
 *        largest value is out of range cost a comparison.
 */
#ifndef GUMBEL_CPU_TRUNCATE_LANES_H
#define GUMBEL_CPU_TRUNCATE_LANES_H

#include "cpu/lanes/draw_lanes.h"

/* The largest value of each block; flags of what is NaN or +inf in them. */
static uint32_t survey(const float *v, int64_t blocks, float *largest)
{
    gumbel_summary seen = {0};
    for (int64_t i = 0; i < blocks; i++, v += GUMBEL_BLOCK) {
        v16f part[4] = {vf_load(v), vf_load(v + 16), vf_load(v + 32), vf_load(v + 48)};
        largest[i] = vf_largest(vf_max(vf_max(part[0], part[1]), vf_max(part[2], part[3])));
        if (__builtin_expect(!all_count(part), 0))
            cpu_flag_block(&seen, v);
    }
    return seen.flags;
}

/* gumbel_token_mass() in its halves; both are exact. */
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

/* Add the masses, relative to `largest`, of the values that are not below `bound`; how many they
 * are, less some that are too small to have a mass. */
static int64_t weigh(const cpu_stretch *s, float bound, float largest, cpu_weight *sum)
{
    int64_t count = 0;
    float reach = largest - GUMBEL_MASS_REACH > bound ? largest - GUMBEL_MASS_REACH : bound;
    v16u highs = vu_set(0), lows = vu_set(0);
    v16f m = vf_set(largest), lowest = vf_set(bound), nothing = vf_set(-INFINITY);
    for (int64_t i = 0; i < s->blocks; i += s->step) {
        if (s->largest[i] < reach)
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
            /* Two halves of at most 2^31 fit a word. */
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

/* Add those of sixteen values that `in` names to their bins, cpu_tally_bin(). A NaN, which no row
 * has unless its caller writes it during the call, stays within the bins. */
LANES void tally_lanes(const cpu_tally *t, v16f values, uint32_t in)
{
    uint32_t places[CPU_LANES], high[CPU_LANES], low[CPU_LANES];
    v16u last = vu_set(((uint32_t)CPU_BINS << t->shift) - 1), place;
    if (t->slope > 0.0f)
        place = vu_truncate(vf_mul(vf_sub(values, vf_set(t->low)), vf_set(t->slope)));
    else
        place = vu_add(lanes_key(values), vu_set(0u - t->low_key));
    vu_store(places, vu_min(place, last));
    if (!t->by_mass) {
        for (; in != 0; in &= in - 1)
            t->bins[places[__builtin_ctz(in)] >> t->shift].low++;
        return;
    }
    v16u halves[2];
    lanes_mass(lanes_exp(vf_sub(values, vf_set(t->largest))), &halves[0], &halves[1]);
    vu_store(high, halves[0]);
    vu_store(low, halves[1]);
    for (; in != 0; in &= in - 1) {
        int lane = __builtin_ctz(in);
        cpu_weight *bin = &t->bins[places[lane] >> t->shift];
        bin->high += high[lane];
        bin->low += low[lane];
    }
}

/* One step of a descent. */
static void tally(const cpu_stretch *s, const cpu_tally *t)
{
    v16f low = vf_set(t->low), high = vf_set(t->high), scale = vf_set(t->scale);
    for (int64_t i = 0; i < s->blocks; i += s->step) {
        if (s->largest[i] * t->scale < t->low)
            continue;
        for (int q = 0; q < 4; q++) {
            v16f part = vf_mul(vf_load(s->v + i * GUMBEL_BLOCK + 16 * q), scale);
            uint32_t out = vm_bits(vf_less(part, low)) | vm_bits(vf_less(high, part));
            if (out != 0xffffu)
                tally_lanes(t, part, ~out & 0xffffu);
        }
    }
}

/* out[64] = v * scale, -inf for what is below `bound`; how many are not, and not -inf. */
static int keep(const float *v, float scale, float bound, float *out)
{
    int kept = 0;
    v16f lowest = vf_set(bound), times = vf_set(scale), nothing = vf_set(-INFINITY);
    for (int i = 0; i < GUMBEL_BLOCK; i += 16) {
        v16f part = vf_load(v + i);
        part = lanes_at_least(part, lowest, vf_mul(part, times), nothing);
        kept += __builtin_popcount(vm_bits(vf_less(nothing, part)));
        vf_store(out + i, part);
    }
    return kept;
}

/* How many values v * scale are above `bound`. */
static int64_t count_above(const cpu_stretch *s, float scale, float bound)
{
    int64_t count = 0;
    v16f times = vf_set(scale), lowest = vf_set(bound);
    for (int64_t i = 0; i < s->blocks; i += s->step) {
        if (!(s->largest[i] * scale > bound))
            continue;
        for (int q = 0; q < 4; q++) {
            v16f part = vf_mul(vf_load(s->v + i * GUMBEL_BLOCK + 16 * q), times);
            count += __builtin_popcount(vm_bits(vf_less(lowest, part)));
        }
    }
    return count;
}

#endif
