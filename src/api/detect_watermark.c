/* SPDX-License-Identifier: Apache-2.0
 *
 * Detection of a watermark: the score of each token, and the tail of the gamma distribution.
 */
#include "gumbel/watermark.h"

#include "core/fail.h"
#include "core/watermark_row.h"
#include "maths/noise.h"
#include "validate/validate_fields.h"
#include "validate/validate_watermark.h"

#include <math.h>
#include <string.h>

/* ----------------------------------------------------------------------------------- tail ---- */

/* ln(exp(-s) s^n / n!) of an integer n >= 0, s > 0. From n = 16 on Stirling's series has an error
 * below 1e-16, and the terms of the size of n cancel before they are rounded. */
static double log_poisson(double n, double s)
{
    static const double terms[] = {1 / 12., -1 / 360., 1 / 1260., -1 / 1680., 1 / 1188.};
    const double two_pi = 6.28318530717958647693;
    double factorial = 1, sum = 0;
    if (n < 16) {
        for (double k = 2; k <= n; k++)
            factorial *= k;
        return n * log(s) - s - log(factorial);
    }
    const double d = (s - n) / n;
    double power = 1 / n;
    for (size_t k = 0; k < sizeof terms / sizeof *terms; k++) {
        sum += terms[k] * power;
        power /= n * n;
    }
    return n * (log1p(d) - d) - 0.5 * log(two_pi * n) - sum;
}

/* ln P(Gamma(n, 1) >= s) = ln sum_{k < n} exp(-s) s^k / k!, n >= 1. Above the mean the terms are
 * summed from the largest down; below it those from k = n on give the complement. */
static double log_upper_gamma(double n, double s)
{
    double sum = 0, term = 1;
    if (s <= 0)
        return 0;
    if (s >= n) {
        for (double k = n - 1; k >= 0 && term > sum * 0x1p-60; k--) {
            sum += term;
            term *= k / s;
        }
        return log_poisson(n - 1, s) + log(sum);
    }
    for (double k = n + 1; term > sum * 0x1p-60; k++) {
        sum += term;
        term *= s / k;
    }
    return log1p(-exp(log_poisson(n, s) + log(sum)));
}

/* --------------------------------------------------------------------------------- scores ---- */

/* Bits of the filter of contexts: 64 KiB on the stack. */
#define FILTER_BITS (1u << 19)

typedef struct context_filter {
    uint64_t words[FILTER_BITS / 64];
} context_filter;

/* Whether a context with this hash may be in the filter; adds it. */
static int add_to_filter(context_filter *filter, uint64_t hash)
{
    uint64_t *word = &filter->words[hash % FILTER_BITS / 64];
    const uint64_t bit = UINT64_C(1) << hash % 64;
    const int had = (*word & bit) != 0;
    *word |= bit;
    return had;
}

/* Whether the `length` tokens before token i also precede an earlier token. */
static int is_repeated(const int32_t *tokens, int64_t i, int64_t length)
{
    const int32_t *context = tokens + i - length;
    for (int64_t j = 0; j < i - length; j++)
        if (tokens[j] == context[0] &&
            memcmp(tokens + j, context, (size_t)length * sizeof *tokens) == 0)
            return 1;
    return 0;
}

/* -ln(1 - u) of u = exp(-exp(-g)). */
static double score_of_noise(float g) { return -log(-expm1(-exp(-(double)g))); }

/* Adds the score of token i to the detection, and its rounding error to *carry; returns it, or NaN
 * if the token is not scored. */
static double score_token(const gumbel_detector *d, const int32_t *tokens, int64_t i,
                          context_filter *filter, gumbel_detection *found, double *carry)
{
    int32_t context[GUMBEL_CONTEXT_MAX];
    if (i < d->context)
        return NAN;
    for (int32_t k = 0; k < d->context; k++)
        context[k] = tokens[i - 1 - k];
    const uint64_t position = gumbel_keyed_position(d->key, d->context, context);
    if ((add_to_filter(filter, position) && is_repeated(tokens, i, d->context)) || i < d->first)
        return NAN;
    const gumbel_stream stream =
        gumbel_stream_at(gumbel_keyed_seed(d->key, d->context), position, d->sample, d->domain);
    const double score = score_of_noise(gumbel_noise_of_token(stream, (uint32_t)tokens[i]));
    const double term = score - *carry, sum = found->statistic + term;
    *carry = (sum - found->statistic) - term;
    found->statistic = sum;
    found->scored++;
    return score;
}

gumbel_status gumbel_detect_watermark(const gumbel_detector *detector, const int32_t *tokens,
                                      int64_t count, double *scores, gumbel_detection *detection,
                                      gumbel_error *error)
{
    gumbel_detector d;
    gumbel_detection found, read;
    context_filter filter;
    double carry = 0, log_p = 0;
    GUMBEL_FORWARD(gumbel_read_detector(&d, detector, tokens, count, error));
    GUMBEL_REFUSE_IF(!detection, error, "detection", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(&read, sizeof read, detection, "detection", error));
    GUMBEL_FORWARD(gumbel_check_aligned(scores, sizeof *scores, "scores", error));
    memset(&filter, 0, sizeof filter);
    found = (gumbel_detection){.struct_size = read.struct_size};
    for (int64_t i = 0; i < count; i++) {
        const double score = score_token(&d, tokens, i, &filter, &found, &carry);
        if (scores)
            scores[i] = score;
    }
    if (found.scored > 0)
        log_p = log_upper_gamma((double)found.scored, found.statistic);
    found.log10_p = log_p * 0.43429448190325182765;
    found.p_value = log_p < -706.8 ? 0 : exp(log_p);
    memcpy(detection, &found, read.struct_size < sizeof found ? read.struct_size : sizeof found);
    return GUMBEL_OK;
}
