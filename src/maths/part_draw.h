/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of a vocabulary drawn by their log-masses (the paper's grouped draws). A part's Gumbel is
 * that of a token whose id is the part's number, in the domain of parts. In a stream the choice
 * between what is there and a part has two Gumbels: L + g > l + g' has the chance e^L / (e^L +
 * e^l), and both ends of it are as fine as noise is.
 *
 * Masses are summed as fixed sequences of float64 operations, so that host and GPU come to the same
 * bits, and a stream to the same choice.
 */
#ifndef GUMBEL_MATHS_PART_DRAW_H
#define GUMBEL_MATHS_PART_DRAW_H

#include "maths/noise.h"
#include "maths/summary.h"

/* exp(x) for x <= 0; 0 below -700. The Taylor series to degree 13 of what x is beyond a multiple
 * of ln 2: an error below 2^-52 of it. */
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

/* ln(1 + y) for y in [0, 1]: 2 artanh(y / (2 + y)), 17 terms of it, of which the last is below
 * 2^-58. */
GUMBEL_INLINE double gumbel_log1p_unit(double y)
{
    double z = y / (2.0 + y), square = z * z, sum = 1.0 / 33;
    for (int k = 15; k >= 0; k--)
        sum = fma(sum, square, 1.0 / (2 * k + 1));
    return 2.0 * z * sum;
}

/* ln(e^a + e^b), of which neither is +inf or NaN. */
GUMBEL_INLINE double gumbel_log_add_exp(double a, double b)
{
    double high = a > b ? a : b, low = a > b ? b : a;
    return low > -INFINITY ? high + gumbel_log1p_unit(gumbel_exp_double(low - high)) : high;
}

/* What is wrong with a log-mass, as bits of a summary's flags. */
GUMBEL_INLINE uint32_t gumbel_mass_flags(float log_mass)
{
    return log_mass != log_mass ? GUMBEL_FLAG_NAN : log_mass == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
}

/* Offer a part to the best of a draw. */
GUMBEL_INLINE void gumbel_summary_offer_part(gumbel_summary *best, gumbel_stream stream,
                                             int32_t part, float log_mass)
{
    gumbel_summary_offer(best, log_mass + gumbel_noise_of_token(stream, (uint32_t)part), log_mass,
                         part);
}

/* Whether the choice in a stream falls on `part`, beside all that has come before. */
GUMBEL_INLINE int gumbel_stream_chooses_part(gumbel_stream stream, int32_t part, float log_mass,
                                             double before)
{
    double g = gumbel_noise_of_token(stream, 2 * (uint32_t)part);
    return log_mass + g > before + gumbel_noise_of_token(stream, 2 * (uint32_t)part + 1);
}

#endif
