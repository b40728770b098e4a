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

/* Contexts of a text by their hashes, in 64 KiB on the stack. */
#define FILTER_BITS (1u << 18)
#define LATEST_SIZE (1u << 13)

typedef struct seen_contexts {
    uint64_t filter[FILTER_BITS / 64]; /* a bit for each hash: 0 if no context has it */
    int32_t latest[LATEST_SIZE];       /* the end of the latest context with this hash; 0: none */
} seen_contexts;

/* Whether the `length` tokens before tokens[i] and before tokens[j] are equal. */
static int is_same_context(const int32_t *tokens, int64_t i, int64_t j, int64_t length)
{
    return memcmp(tokens + i - length, tokens + j - length, (size_t)length * sizeof *tokens) == 0;
}

/* Whether the context of token i, with this hash, is that of an earlier token; adds it. Contexts
 * are compared with all earlier ones only if both tables leave it open. */
static int add_context(seen_contexts *seen, uint64_t hash, const int32_t *tokens, int64_t i,
                       int64_t length)
{
    uint64_t *word = &seen->filter[hash % FILTER_BITS / 64];
    int32_t *latest = &seen->latest[(hash >> 32) % LATEST_SIZE];
    const uint64_t bit = UINT64_C(1) << hash % 64;
    const int may_repeat = (*word & bit) != 0;
    const int64_t candidate = *latest;
    *word |= bit;
    *latest = (int32_t)i;
    if (!may_repeat || candidate == 0)
        return 0;
    if (is_same_context(tokens, i, candidate, length))
        return 1;
    for (int64_t j = length; j < i; j++)
        if (tokens[j - 1] == tokens[i - 1] && is_same_context(tokens, i, j, length))
            return 1;
    return 0;
}

/* -ln(1 - u) of u = exp(-exp(-g)). */
static double score_of_noise(float g) { return -log(-expm1(-exp(-(double)g))); }

/* Adds the score of token i to the detection, and its rounding error to *carry; returns it, or NaN
 * if the token is not scored. */
static double score_token(const gumbel_detector *d, const int32_t *tokens, int64_t i,
                          seen_contexts *seen, gumbel_detection *found, double *carry)
{
    int32_t context[GUMBEL_CONTEXT_MAX];
    if (i < d->context)
        return NAN;
    for (int32_t k = 0; k < d->context; k++)
        context[k] = tokens[i - 1 - k];
    const uint64_t position = gumbel_keyed_position(d->key, d->context, context);
    if (add_context(seen, position, tokens, i, d->context) || i < d->first)
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
    seen_contexts seen;
    double carry = 0, log_p = 0;
    GUMBEL_FORWARD(gumbel_read_detector(&d, detector, tokens, count, error));
    GUMBEL_REFUSE_IF(!detection, error, "detection", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(&read, sizeof read, detection, "detection", error));
    GUMBEL_FORWARD(gumbel_check_aligned(scores, sizeof *scores, "scores", error));
    memset(&seen, 0, sizeof seen);
    found = (gumbel_detection){.struct_size = read.struct_size};
    for (int64_t i = 0; i < count; i++) {
        const double score = score_token(&d, tokens, i, &seen, &found, &carry);
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
