/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws one of several parts of a vocabulary by their log-masses (grouped draws of the
 * FlashSampling paper). The Gumbel noise of part i is that of token i, in a noise domain for parts.
 *
 * A stream draws between the parts so far, with log-mass l, and the next part, with log-mass L. The
 * draw takes two Gumbel variates g and g': L + g > l + g' has probability e^L / (e^L + e^l). The
 * comparison is accurate for probabilities near 0 and near 1, as far as the noise is.
 *
 * Masses are summed by fixed sequences of float64 operations, so that host and GPU get the same
 * bits and choices.
 */
#ifndef GUMBEL_MATHS_PART_DRAW_H
#define GUMBEL_MATHS_PART_DRAW_H

#include "maths/noise.h"
#include "maths/summary.h"

/* exp(x) for x <= 0; 0 below -700. Taylor series to degree 13 of x reduced modulo ln 2; relative
 * error below 2^-52. */
GUMBEL_INLINE double gumbel_exp_double(double x)
{
    if (!(x >= -700.0))
        return 0.0;
    double shifted = x * 0x1.71547652b82fep+0 + 0x1.8p52, n = shifted - 0x1.8p52;
    double r = fma(n, -0x1.abc9e3b39803fp-56, fma(n, -0x1.62e42fefa39efp-1, x));
    double sum = 1.0, scale;
    for (int k = 13; k >= 1; k--)
        sum = fma(sum * r, 1.0 / k, 1.0);
    uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

/* ln(1 + y) for y in [0, 1]: 17 terms of 2 artanh(y / (2 + y)), the last below 2^-58. */
GUMBEL_INLINE double gumbel_log1p_unit(double y)
{
    double z = y / (2.0 + y), square = z * z, sum = 1.0 / 33;
    for (int k = 15; k >= 0; k--)
        sum = fma(sum, square, 1.0 / (2 * k + 1));
    return 2.0 * z * sum;
}

/* ln(e^a + e^b); neither a nor b is +inf or NaN. */
GUMBEL_INLINE double gumbel_log_add_exp(double a, double b)
{
    double high = a > b ? a : b, low = a > b ? b : a;
    return low > -INFINITY ? high + gumbel_log1p_unit(gumbel_exp_double(low - high)) : high;
}

/* Summary flags of an invalid log-mass; 0 if it is valid. */
GUMBEL_INLINE uint32_t gumbel_mass_flags(float log_mass)
{
    return log_mass != log_mass ? GUMBEL_FLAG_NAN : log_mass == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
}

/* Updates the best part of a draw with the score of `part`. */
GUMBEL_INLINE void gumbel_summary_offer_part(gumbel_summary *best, gumbel_stream stream,
                                             int32_t part, float log_mass)
{
    gumbel_summary_offer(best, log_mass + gumbel_noise_of_token(stream, (uint32_t)part), log_mass,
                         part);
}

/* Whether a stream chooses `part` over all parts before it, whose log-mass is `before`. */
GUMBEL_INLINE int gumbel_stream_chooses_part(gumbel_stream stream, int32_t part, float log_mass,
                                             double before)
{
    double g = gumbel_noise_of_token(stream, 2 * (uint32_t)part);
    return log_mass + g > before + gumbel_noise_of_token(stream, 2 * (uint32_t)part + 1);
}

#endif
