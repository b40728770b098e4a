/* SPDX-License-Identifier: Apache-2.0
 *
 * Transforms between product and draw, on the sixteen lanes of cpu/isa/lanes_*.h: logits of any
 * dtype to transformed logits (eq. 2), masks, and rows of transformed logits to probabilities.
 */
#ifndef GUMBEL_CPU_STAGE_LANES_H
#define GUMBEL_CPU_STAGE_LANES_H

#include "cpu/lanes/cpu_widen.h"
#include "cpu/lanes/draw_lanes.h"
#include "maths/rounding.h"

/* tanh(x), with the operations of gumbel_tanh(). */
LANES v16f lanes_tanh(v16f x)
{
    static const float terms[GUMBEL_TANH_TERMS] = GUMBEL_TANH_POLYNOMIAL;
    v16u sign = vu_and(vu_of_bits(x), vu_set(0x80000000u));
    v16f a = vf_of_bits(vu_and(vu_of_bits(x), vu_set(0x7fffffffu)));
    v16f square = vf_mul(a, a);
    v16f p = vf_set(terms[GUMBEL_TANH_TERMS - 1]);
    UNROLLED
    for (int i = GUMBEL_TANH_TERMS - 2; i >= 0; i--)
        p = vf_fma(p, square, vf_set(terms[i]));
    v16f small = vf_fma(vf_mul(a, square), p, a);
    v16f e = lanes_exp(vf_mul(a, vf_set(-2.0f)));
    v16f one = vf_set(1.0f);
    v16f large = vf_sub(one, vf_div(vf_add(e, e), vf_add(one, e)));
    v16f magnitude = vf_select(vf_less(a, vf_set(GUMBEL_TANH_SMALL)), small, large);
    return vf_of_bits(vu_add(vu_of_bits(magnitude), sign));
}

LANES v16f load_widened(const void *from, gumbel_dtype dtype, int i)
{
    if (dtype == GUMBEL_FLOAT32)
        return vf_load((const float *)from + i);
    const uint16_t *halves = (const uint16_t *)from + i;
    return dtype == GUMBEL_FLOAT16 ? vf_load_half(halves) : vf_load_brain(halves);
}

/* `dtype` and `capped` are constants of each instance. */
LANES void transform_as(const void *from, gumbel_dtype dtype, int count, const cpu_transform *t,
                        int capped, float *z)
{
    v16f scale = vf_set(t->scale), inverse_temperature = vf_set(t->inverse_temperature);
    v16f soft_cap = vf_set(t->soft_cap), inverse_cap = vf_set(t->inverse_cap);
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        v16f y = load_widened(from, dtype, i);
        if (t->bias)
            y = vf_add(y, vf_load(t->bias + i));
        y = vf_mul(y, scale);
        if (capped) {
            v16u absolute = vu_and(vu_of_bits(y), vu_set(0x7fffffffu));
            v16m finite = vf_less(vf_of_bits(absolute), vf_set(INFINITY));
            y = vf_select(finite, vf_mul(soft_cap, lanes_tanh(vf_mul(y, inverse_cap))), y);
        }
        vf_store(z + i, vf_mul(y, inverse_temperature));
    }
    for (; i < count; i++) {
        float logit = cpu_widen_element(from, dtype, i);
        z[i] = gumbel_transform_logit(t->bias ? logit + t->bias[i] : logit, t->scale, t->soft_cap,
                                      t->inverse_cap, t->inverse_temperature);
    }
}

static void transform_logits(const void *from, gumbel_dtype dtype, int count,
                             const cpu_transform *t, float *z)
{
    int capped = t->soft_cap > 0.0f;
    if (dtype == GUMBEL_FLOAT32 && capped)
        transform_as(from, GUMBEL_FLOAT32, count, t, 1, z);
    else if (dtype == GUMBEL_FLOAT32)
        transform_as(from, GUMBEL_FLOAT32, count, t, 0, z);
    else if (dtype == GUMBEL_FLOAT16)
        transform_as(from, GUMBEL_FLOAT16, count, t, capped, z);
    else
        transform_as(from, GUMBEL_BFLOAT16, count, t, capped, z);
}

/* gumbel_round_to_bfloat16() of each lane. */
LANES v16u lanes_round_to_brain(v16f x)
{
    v16u bits = vu_of_bits(x), even = vu_and(vu_shift_right(bits, 16), vu_set(1));
    v16f rounded = vf_of_bits(vu_shift_right(vu_add(vu_add(bits, even), vu_set(0x7fffu)), 16));
    /* A NaN is below no bound; +inf is above the other. */
    v16f from_below =
        vf_select(vf_less(vf_set(-INFINITY), x), rounded, vf_of_bits(vu_set(0x7fc0u)));
    return vu_of_bits(vf_select(vf_less(x, vf_set(INFINITY)), rounded, from_below));
}

static void store_values(const float *v, int64_t count, gumbel_dtype dtype, void *to)
{
    int64_t i = 0;
    if (dtype == GUMBEL_FLOAT32) {
        memcpy(to, v, (size_t)count * sizeof *v);
        return;
    }
    for (; i + 16 <= count; i += 16) {
        uint16_t *halves = (uint16_t *)to + i;
        if (dtype == GUMBEL_FLOAT16)
            vf_store_half(halves, vf_load(v + i));
        else
            vu_store_low(halves, lanes_round_to_brain(vf_load(v + i)));
    }
    for (; i < count; i++)
        gumbel_store_element(to, dtype, i, v[i]);
}

static void mask_tokens(float *z, const uint32_t *drop, int words)
{
    static const uint32_t places[CPU_LANES] = {1 << 0,  1 << 1,  1 << 2,  1 << 3, 1 << 4,  1 << 5,
                                               1 << 6,  1 << 7,  1 << 8,  1 << 9, 1 << 10, 1 << 11,
                                               1 << 12, 1 << 13, 1 << 14, 1 << 15};
    v16u place = vu_load(places);
    v16f zero = vf_set(0.0f), gone = vf_set(-INFINITY);
    for (int i = 0; i < 2 * words; i++) {
        uint32_t half = drop[i / 2] >> 16 * (i % 2) & 0xffffu;
        v16m dropped = vf_less(zero, vf_of_int(vu_and(vu_set(half), place)));
        if (half)
            vf_store(z + 16 * i, vf_select(dropped, gone, vf_load(z + 16 * i)));
    }
}

/* One block of exponentiate_row(). */
LANES float exponentiate_block(float *z, v16f largest)
{
    v16f e[4], lowest = vf_set(GUMBEL_EXP_LOWEST), none = vf_set(0.0f);
    UNROLLED
    for (int q = 0; q < 4; q++) {
        v16f x = vf_sub(vf_load(z + 16 * q), largest);
        e[q] = vf_select(vf_less(x, lowest), none, lanes_exp(x));
        vf_store(z + 16 * q, e[q]);
    }
    return vf_sum(vf_add(vf_add(e[0], e[1]), vf_add(e[2], e[3])));
}

static double exponentiate_row(float *z, int count, float max_z)
{
    v16f largest = vf_set(max_z);
    double sum = 0.0;
    int i = 0;
    for (; i + GUMBEL_BLOCK <= count; i += GUMBEL_BLOCK)
        sum += (double)exponentiate_block(z + i, largest);
    if (i == count)
        return sum;
    float end[GUMBEL_BLOCK];
    for (int j = 0; j < GUMBEL_BLOCK; j++)
        end[j] = i + j < count ? z[i + j] : -INFINITY;
    sum += (double)exponentiate_block(end, largest);
    memcpy(z + i, end, (size_t)(count - i) * sizeof *z);
    return sum;
}

static void scale_row(float *z, int count, float by)
{
    v16f factor = vf_set(by);
    int i = 0;
    for (; i + 16 <= count; i += 16)
        vf_store(z + i, vf_mul(vf_load(z + i), factor));
    for (; i < count; i++)
        z[i] *= by;
}

#endif
