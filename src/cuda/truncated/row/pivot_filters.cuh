/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters of tokens by their values, for draws before a row is truncated. A filter that
 * `is_monotone` accepts all values above one that it accepts.
 */
#ifndef GUMBEL_CUDA_PIVOT_FILTERS_CUH
#define GUMBEL_CUDA_PIVOT_FILTERS_CUH

#include "maths/program_rules.h"

namespace
{

/* Accepts values above a pivot. */
struct values_above {
    static constexpr bool is_monotone = true;
    float pivot;

    __device__ __forceinline__ bool accepts_value(float value) const { return value > pivot; }
};

/* Accepts values whose distance from a centre, relative to the largest value, is below `reach`. */
struct values_near {
    static constexpr bool is_monotone = false;
    float largest, centre, reach;

    __device__ __forceinline__ float find_distance(float value) const
    {
        return gumbel_typical_distance(value, largest, centre);
    }
    __device__ __forceinline__ bool accepts_value(float value) const
    {
        return find_distance(value) < reach;
    }
};

} // namespace

#endif
