/* SPDX-License-Identifier: Apache-2.0
 *
 * The stages between product and draw, on the sixteen lanes of cpu/lanes_*.h: widening logits to
 * float32, and the transforms of eq. 2 in place.
 */
#ifndef GUMBEL_CPU_STAGE_LANES_H
#define GUMBEL_CPU_STAGE_LANES_H

#include "cpu/cpu_widen.h"
#include "cpu/draw_lanes.h"

static void widen(const void *from, gumbel_dtype dtype, int count, float *to)
{
    int i = 0;
    if (dtype == GUMBEL_FLOAT32) {
        memcpy(to, from, (size_t)count * sizeof *to);
        return;
    }
    const uint16_t *halves = from;
    for (; dtype == GUMBEL_FLOAT16 && i + 16 <= count; i += 16)
        vf_store(to + i, vf_load_half(halves + i));
    for (; dtype == GUMBEL_BFLOAT16 && i + 16 <= count; i += 16)
        vf_store(to + i, vf_load_brain(halves + i));
    for (; i < count; i++)
        to[i] = cpu_widen_element(from, dtype, i);
}

/* tanh(x), operation by operation gumbel_tanh(). */
LANES v16f lanes_tanh(v16f x)
{
    static const float terms[GUMBEL_TANH_TERMS] = GUMBEL_TANH_POLYNOMIAL;
    v16u sign = vu_and(vu_of_bits(x), vu_set(0x80000000u));
    v16f a = vf_of_bits(vu_and(vu_of_bits(x), vu_set(0x7fffffffu)));
    v16f square = vf_mul(a, a);
    v16f p = vf_set(terms[GUMBEL_TANH_TERMS - 1]);
#pragma GCC unroll 8
    for (int i = GUMBEL_TANH_TERMS - 2; i >= 0; i--)
        p = vf_fma(p, square, vf_set(terms[i]));
    v16f small = vf_fma(vf_mul(a, square), p, a);
    v16f e = lanes_exp(vf_mul(a, vf_set(-2.0f)));
    v16f one = vf_set(1.0f);
    v16f large = vf_sub(one, vf_div(vf_add(e, e), vf_add(one, e)));
    v16f magnitude = vf_select(vf_less(a, vf_set(GUMBEL_TANH_SMALL)), small, large);
    return vf_of_bits(vu_add(vu_of_bits(magnitude), sign));
}

static void transform(float *z, int count, const cpu_transform *t)
{
    v16f scale = vf_set(t->scale), inverse_temperature = vf_set(t->inverse_temperature);
    v16f soft_cap = vf_set(t->soft_cap), inverse_cap = vf_set(t->inverse_cap);
    v16f infinity = vf_set(INFINITY);
    for (int i = 0; i < count; i += 16) {
        v16f y = vf_load(z + i);
        if (t->bias)
            y = vf_add(y, vf_load(t->bias + i));
        y = vf_mul(y, scale);
        if (t->soft_cap > 0.0f) {
            v16u absolute = vu_and(vu_of_bits(y), vu_set(0x7fffffffu));
            v16m finite = vf_less(vf_of_bits(absolute), infinity);
            y = vf_select(finite, vf_mul(soft_cap, lanes_tanh(vf_mul(y, inverse_cap))), y);
        }
        vf_store(z + i, vf_mul(y, inverse_temperature));
    }
}

#endif
