/* SPDX-License-Identifier: Apache-2.0
 *
 * Laws of the quantization errors of a screen, and bounds of their sums (docs/maths.md, section
 * 14), as find_error_law() and bound_quantization() of maths/screen_bound.c compute them.
 */
#ifndef GUMBEL_CUDA_SCREEN_LAW_CUH
#define GUMBEL_CUDA_SCREEN_LAW_CUH

#include "gumbel/screen.h"

#include "maths/screen_bound.h"

namespace
{

/* Factors that cover the rounding of sums and roots in float64, and of conversion to float32. */
constexpr double kUp = 1.0 + 1e-9, kFloatUp = 1.0 + 0x1p-20;

__device__ __forceinline__ float float_above(double x) { return (float)(x * kUp * kFloatUp); }

/* Sums over a hidden state: squares, magnitudes, products with the dither in its units, and
 * elements. */
enum { HIDDEN_SQUARE, HIDDEN_MAGNITUDE, HIDDEN_SHIFT, HIDDEN_SUM, HIDDEN_SUMS };

/* The bound entry A + deviation R of the sum of e_j h_j: for certain, or with the chance of c if
 * the screen's certificate permits that and the bound is smaller, which holds for every set of
 * outliers or for none. The outliers of a probable bound do not depend on the screen's errors, and
 * so not on the dither. `nibbles`: of a copy of nibbles, where `coarse` is the law of the errors of
 * the high nibbles alone. */
template <bool nibbles, bool coarse = false> struct error_law {
    static constexpr double scale = coarse ? 16.0 : 1.0; /* distance of two values of a weight */
    static constexpr double probable_deviation =
        scale * (nibbles ? GUMBEL_SCREEN_NESTED_DEVIATION : GUMBEL_SCREEN_DEVIATION);
    /* Bounds the mean of an error, and the rounding of w / s to the grid of the dither. */
    static constexpr double mean = nibbles ? 0x1p-16 : (double)GUMBEL_SCREEN_DITHER_UNIT;
    static constexpr double max_shift = coarse ? 16.0 : nibbles ? 8.5 : 0.5;
    static constexpr double tiny = nibbles ? 0x1p-125 : (double)GUMBEL_SCREEN_WIDTH_MIN;

    double norm; /* bounds the norm of the errors of every row */
    bool certain;

    /* `low_nibbles`: gumbel_screen_bound_low_nibbles(). */
    __device__ __forceinline__ error_law(const gumbel_screen_header &h, float low_nibbles)
        : norm((double)h.error + (coarse ? (double)low_nibbles : 0.0)),
          certain(h.certificate == GUMBEL_SCREEN_CERTAIN || !(norm > probable_deviation))
    {
    }
    __device__ __forceinline__ double get_entry() const
    {
        const double entry = scale * (double)GUMBEL_SCREEN_ENTRY;
        return certain ? fmin(entry, norm) : entry;
    }
    __device__ __forceinline__ double get_deviation() const
    {
        return certain ? norm : probable_deviation;
    }
    __device__ __forceinline__ double bound_sum(double outlier_sum, double inlier_norm) const
    {
        return get_entry() * outlier_sum + get_deviation() * inlier_norm;
    }
    /* The limit of outliers for this norm of the others. */
    __device__ __forceinline__ float find_limit(double inlier_norm) const
    {
        return get_deviation() > 0.0 ? (float)(2 * inlier_norm * get_entry() / get_deviation())
                                     : INFINITY;
    }
};

/* The outlier sum A and the inlier norm R of a limit, and their bound. */
struct outlier_bound {
    double sum, inlier_norm, bound;
};

template <class law>
__device__ __forceinline__ outlier_bound bound_outliers(const law &l, const double (&sums)[2])
{
    const double inlier_norm = sqrt(sums[1]) * kUp;
    return {sums[0], inlier_norm, l.bound_sum(sums[0], inlier_norm)};
}

/* Sets the terms of the sum of e_j h_j, and the shift. The error terms that do not depend on
 * outliers are the rounding of the shift in float64 and float32, and of its sums in bounds; for
 * probable bounds also those of law::mean. */
template <bool nibbles, bool coarse, int count>
__device__ __forceinline__ void
set_quantization(const error_law<nibbles, coarse> &law, const outlier_bound &best,
                 const double (&sums)[count], gumbel_screen_hidden_error &hidden_error)
{
    double shift = sums[HIDDEN_SHIFT] * (double)GUMBEL_SCREEN_DITHER_UNIT;
    if constexpr (coarse)
        shift -= 7.5 * sums[HIDDEN_SUM];
    const double by_magnitude = 2 * law.max_shift * 0x1p-36 + (law.certain ? 0.0 : law.mean);
    const double dithered =
        0x1p-21 * fabs(shift) + by_magnitude * sums[HIDDEN_MAGNITUDE] + law.tiny;
    hidden_error.shift = (float)shift;
    hidden_error.outlier_sum = law.certain ? float_above(best.sum) : 0.0f;
    hidden_error.inlier_norm = law.certain ? float_above(best.inlier_norm) : 0.0f;
    hidden_error.dithered = float_above(dithered + (law.certain ? 0.0 : best.bound));
}

} // namespace

#endif
