/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of program_rules.h by the lanes of a warp, and of the entropy of a row.
 */
#ifndef GUMBEL_CUDA_FACTS_CUH
#define GUMBEL_CUDA_FACTS_CUH

#include "cuda/common/ptx.cuh"
#include "maths/program_rules.h"

namespace
{

/* The sum over a warp of 128-bit integers, modulo 2^128, for all lanes; of digits whose sums over
 * 32 lanes fit in 32 bits. */
__device__ __forceinline__ gumbel_wide sum_wide_of_warp(gumbel_wide own)
{
    constexpr int digit_bits = 27;
    gumbel_wide sum = 0;
#pragma unroll
    for (int shift = 0; shift < 128; shift += digit_bits) {
        const uint32_t digit = (uint32_t)(own >> shift) & ((1u << digit_bits) - 1);
        sum += (gumbel_wide)__reduce_add_sync(~0u, digit) << shift;
    }
    return sum;
}

/* Adds a value to the sums that `required` names. */
__device__ __forceinline__ void add_to_facts(gumbel_facts &own, int required, float v,
                                             float largest)
{
    const float e = required & ~GUMBEL_FACT_SPREAD ? gumbel_exp(v - largest) : 0.0f;
    const float squared = required & GUMBEL_FACT_SQUARED ? gumbel_exp(2.0f * (v - largest)) : 0.0f;
    gumbel_facts_add(&own, required, v, largest, e, squared);
}

/* Sums of gumbel_facts that are joined over CTAs: the number of values, and two others. */
struct joined_facts {
    uint64_t count;
    uint64_t first[2], second[2]; /* low half, high half */

    static __device__ __forceinline__ joined_facts pack_sums(uint64_t count, gumbel_wide first,
                                                             gumbel_wide second)
    {
        return {count,
                {(uint64_t)first, (uint64_t)(first >> 64)},
                {(uint64_t)second, (uint64_t)(second >> 64)}};
    }
    static __device__ __forceinline__ joined_facts empty() { return pack_sums(0, 0, 0); }
    __device__ __forceinline__ gumbel_wide get_first() const
    {
        return (gumbel_wide)first[1] << 64 | first[0];
    }
    __device__ __forceinline__ gumbel_wide get_second() const
    {
        return (gumbel_wide)second[1] << 64 | second[0];
    }
    __device__ __forceinline__ void join_warp()
    {
        *this = pack_sums((uint64_t)sum_wide_of_warp(count), sum_wide_of_warp(get_first()),
                          sum_wide_of_warp(get_second()));
    }
};

/* The sums of an entropy over at most kNarrowValues values, in words that take few operations. A
 * mass is below 2^62, and the distance of a value with a mass, in units of 2^-16, less than 2^22.
 */
struct narrow_sums {
    uint64_t mass_low, mass_high;         /* of the low and the high words of masses */
    uint64_t weighted_low, weighted_high; /* of these words times distances */

    __device__ __forceinline__ void add(float v, float largest)
    {
        /* exp(-43) in units of 2^-61 is below 1: smaller values have no mass. */
        constexpr float reach = -43.0f;
        if (!(v - largest > reach))
            return;
        const uint64_t mass = gumbel_token_mass(gumbel_exp(v - largest));
        const uint32_t low = (uint32_t)mass, high = (uint32_t)(mass >> 32);
        const uint32_t units = (uint32_t)rintf((largest - v) * GUMBEL_VALUE_UNITS);
        mass_low += low;
        mass_high += high;
        weighted_low += (uint64_t)low * units;
        weighted_high += (uint64_t)high * units;
    }

    __device__ __forceinline__ void add_to(gumbel_facts &facts) const
    {
        facts.mass += ((gumbel_wide)mass_high << 32) + mass_low;
        facts.weighted += ((gumbel_wide)weighted_high << 32) + weighted_low;
    }
};
constexpr int64_t kNarrowValues = 512;

} // namespace

#endif
