/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   The sums and changes of programs (maths/program_rules.h) over a row's values, on the
 *        sixteen lanes of cpu/isa/lanes_*.h. All sums are of integers, so that their order does not
 *        show.
 * COST   Operations a vector, of AVX-512: spread 22, mass 33, entropy 52, squared 55.
 */
#ifndef GUMBEL_CPU_PROGRAM_LANES_H
#define GUMBEL_CPU_PROGRAM_LANES_H

#include "cpu/lanes/truncate_lanes.h"

/* A value this far below the largest has no mass, so its weighted mass is 0, whatever its
 * distance. */
#define WEIGHTED_REACH 64.0f

/* Sums of 64-bit products: their upper and lower words. */
typedef struct lanes_products {
    v16u high, low;
} lanes_products;

LANES void add_products(lanes_products *sums, v16u a, v16u b)
{
    vu_add_halves(&sums->high, &sums->low, vu_multiply_pairs(a, b));
}

static inline gumbel_wide join_products(const lanes_products *sums)
{
    return ((gumbel_wide)vu_widen_total(sums->high) << 32) + vu_widen_total(sums->low);
}

/* Sums of masses in two halves. */
typedef struct lanes_masses {
    v16u high, low;
} lanes_masses;

LANES void add_masses(lanes_masses *sums, v16f e, v16u *high, v16u *low)
{
    lanes_mass(e, high, low);
    sums->high = vu_widen_add(sums->high, *high);
    sums->low = vu_widen_add(sums->low, *low);
}

static inline gumbel_wide join_masses(const lanes_masses *sums)
{
    return cpu_join_weight((cpu_weight){vu_widen_total(sums->high), vu_widen_total(sums->low)});
}

/* `required` is a constant of each instance. */
LANES void sum_mass_facts(const cpu_span *s, int required, float largest, gumbel_facts *facts)
{
    const v16f m = vf_set(largest), nothing = vf_set(-INFINITY);
    lanes_masses masses = {vu_set(0), vu_set(0)}, squared = masses;
    lanes_products high_products = {vu_set(0), vu_set(0)}, low_products = high_products;
    v16u high, low;
    span_blocks at = {s, 1.0f, -FLT_MAX, 0, 0};
    for (int64_t i; (i = take_block(&at)) >= 0;) {
        UNROLLED
        for (int q = 0; q < 4; q++) {
            const v16f v = vf_load(s->v + i * GUMBEL_BLOCK + 16 * q), x = vf_sub(v, m);
            facts->count += __builtin_popcount(vm_bits(vf_less(nothing, v)));
            if (required == GUMBEL_FACT_SQUARED)
                add_masses(&squared, lanes_exp(vf_mul(x, vf_set(2.0f))), &high, &low);
            add_masses(&masses, lanes_exp(x), &high, &low);
            if (required == GUMBEL_FACT_ENTROPY) {
                const v16f near = vf_max(x, vf_set(-WEIGHTED_REACH));
                const v16u units = vu_of_float(vf_mul(near, vf_set(-GUMBEL_VALUE_UNITS)));
                add_products(&high_products, high, units);
                add_products(&low_products, low, units);
            }
        }
    }
    facts->mass += join_masses(&masses);
    facts->squared += join_masses(&squared);
    facts->weighted +=
        (join_products(&high_products) << GUMBEL_MASS_HALF_BITS) + join_products(&low_products);
}

/* Adds the values of a vector that are beyond the limit; the others have their bits in `inside`. */
LANES void add_far_values(v16f v, uint32_t inside, gumbel_facts *facts)
{
    const uint32_t present = vm_bits(vf_less(vf_set(-INFINITY), v)), far = present & ~inside;
    const uint32_t negative = vm_bits(vf_less(v, vf_set(0.0f))) & far;
    const int count = __builtin_popcount(far), below = __builtin_popcount(negative);
    facts->count -= 16 - __builtin_popcount(present);
    facts->sum += (count - 2 * below) * gumbel_value_units(GUMBEL_VALUE_LIMIT);
    facts->squares += (gumbel_wide)count << 62;
}

static void sum_spread(const cpu_span *s, gumbel_facts *facts)
{
    const v16f limit = vf_set(GUMBEL_VALUE_LIMIT), units = vf_set(GUMBEL_VALUE_UNITS);
    const v16u magnitude = vu_set(0x7fffffffu), offset = vu_set(0x80000000u);
    lanes_products squares = {vu_set(0), vu_set(0)};
    v16u sums = vu_set(0); /* of units + 2^31 */
    int64_t count = 0;
    span_blocks at = {s, 1.0f, -FLT_MAX, 0, 0};
    for (int64_t i; (i = take_block(&at)) >= 0;) {
        UNROLLED
        for (int q = 0; q < 4; q++) {
            v16f v = vf_load(s->v + i * GUMBEL_BLOCK + 16 * q);
            v16m inside = vf_less(vf_of_bits(vu_and(vu_of_bits(v), magnitude)), limit);
            if (!vm_all(inside)) {
                add_far_values(v, vm_bits(inside), facts);
                v = vf_select(inside, v, vf_set(0.0f));
            }
            v = vf_mul(v, units);
            const v16u size = vu_of_float(vf_of_bits(vu_and(vu_of_bits(v), magnitude)));
            sums = vu_widen_add(sums, vu_add(vu_of_float(v), offset));
            add_products(&squares, size, size);
        }
        count += GUMBEL_BLOCK;
    }
    facts->count += count;
    facts->sum += (int64_t)(vu_widen_total(sums) - ((uint64_t)count << 31));
    facts->squares += join_products(&squares);
}

static void sum_facts(const cpu_span *s, int required, float largest, gumbel_facts *facts)
{
    if (required == GUMBEL_FACT_SPREAD)
        sum_spread(s, facts);
    else if (required == GUMBEL_FACT_ENTROPY)
        sum_mass_facts(s, GUMBEL_FACT_ENTROPY, largest, facts);
    else if (required == GUMBEL_FACT_SQUARED)
        sum_mass_facts(s, GUMBEL_FACT_SQUARED, largest, facts);
    else
        sum_mass_facts(s, GUMBEL_FACT_MASS, largest, facts);
}

static void filter_distances(const float *v, float largest, float centre, float reach, float *out)
{
    const v16f m = vf_set(largest), c = vf_set(centre), lowest = vf_set(-reach);
    for (int i = 0; i < GUMBEL_BLOCK; i += 16) {
        const v16f values = vf_load(v + i);
        vf_store(out + i, lanes_at_least(lanes_negative_distance(values, m, c), lowest, values,
                                         vf_set(-INFINITY)));
    }
}

/* With the operations of gumbel_adapt_value(). */
static void adapt_values(const float *v, float largest, float inverse_mass, float target,
                         float *out)
{
    const v16f m = vf_set(largest), inverse = vf_set(inverse_mass), a = vf_set(target);
    const v16f one = vf_set(1.0f), lowest = vf_set(-FLT_MAX);
    for (int i = 0; i < GUMBEL_BLOCK; i += 16) {
        const v16f values = vf_load(v + i);
        const v16f x = vf_sub(vf_mul(lanes_exp(vf_sub(values, m)), inverse), a);
        const v16f distance = vf_of_bits(vu_and(vu_of_bits(x), vu_set(0x7fffffffu)));
        const v16f d = vf_mul(distance, vf_set(1.0f / 0.3f));
        const v16f lowered = vf_div(vf_mul(vf_mul(vf_set(10.0f), d), d), vf_add(one, d));
        vf_store(out + i,
                 lanes_at_least(values, lowest, vf_sub(vf_set(5.0f), lowered), vf_set(-INFINITY)));
    }
}

#endif
