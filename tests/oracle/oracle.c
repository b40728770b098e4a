/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle.h"

#include <math.h>
#include <string.h>

#define UNIT 0x1p-24 /* half an ulp of 1 in float32 */

/* Upper limit of 1/T. */
#define HIGHEST_INVERSE 0x1p100f

static double widen_half(uint16_t bits)
{
    int exponent = (bits >> 10) & 31;
    int fraction = bits & 1023;
    double magnitude;
    if (exponent == 31)
        magnitude = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        magnitude = ldexp(fraction, -24);
    else
        magnitude = ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

double oracle_element(const gumbel_tensor *tensor, int64_t index)
{
    if (tensor->dtype == GUMBEL_FLOAT32)
        return ((const float *)tensor->data)[index];
    uint16_t bits = ((const uint16_t *)tensor->data)[index];
    if (tensor->dtype == GUMBEL_FLOAT16)
        return widen_half(bits);
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Applies eq. 2 to one logit l that is known to within `error`. */
static void transform_logit(double l, double error, float scale, float soft_cap, float temperature,
                            double *z, double *bound)
{
    double factor = scale == 0 ? 1 : scale;
    double y = factor * l;
    error = fabs(factor) * error + UNIT * fabs(y);
    if (soft_cap > 0 && isfinite(y)) {
        y = soft_cap * tanh(y / soft_cap);
        error += 8 * UNIT * fabs(y);
    }
    *z = y;
    if (temperature > 0) {
        float inverse = fminf(1.0f / temperature, HIGHEST_INVERSE);
        *z = y * inverse;
        error = error * inverse + UNIT * fabs(*z);
    }
    *bound = error;
}

/* Adds a token to the row's status; l is the logit before the transforms. */
static void add_status(oracle_logits *logits, double l, double z)
{
    if (isnan(l) || isnan(z))
        logits->status = GUMBEL_ROW_NAN;
    else if ((l == INFINITY || z == INFINITY) && logits->status != GUMBEL_ROW_NAN)
        logits->status = GUMBEL_ROW_INFINITE;
    else if (z > -INFINITY && logits->status == GUMBEL_ROW_EMPTY)
        logits->status = GUMBEL_ROW_OK;
}

static int is_valid_token(int64_t token, int64_t vocab_size)
{
    return vocab_size == 0 || token < vocab_size;
}

void oracle_fused_row(const gumbel_head *head, int64_t row, float temperature,
                      oracle_logits *logits)
{
    const gumbel_tensor *h = &head->hidden, *w = &head->weight, *bias = &head->bias;
    int64_t h_stride = h->stride ? h->stride : h->cols;
    int64_t w_stride = w->stride ? w->stride : w->cols;
    logits->first_token = head->first_token;
    logits->count = w->rows;
    logits->status = GUMBEL_ROW_EMPTY;
    for (int64_t i = 0; i < w->rows; i++) {
        logits->z[i] = -INFINITY;
        logits->bound[i] = 0;
        if (!is_valid_token(head->first_token + i, head->vocab_size))
            continue;
        double l = 0, magnitude = 0;
        for (int64_t k = 0; k < w->cols; k++) {
            double term =
                oracle_element(w, i * w_stride + k) * oracle_element(h, row * h_stride + k);
            l += term;
            magnitude += fabs(term);
        }
        if (bias->rows)
            l += oracle_element(bias, i);
        double error = UNIT * ((double)(w->cols + 1) * magnitude + fabs(l));
        transform_logit(l, error, head->scale, head->soft_cap, temperature, &logits->z[i],
                        &logits->bound[i]);
        add_status(logits, l, logits->z[i]);
    }
}

void oracle_logits_row(const gumbel_logits *input, int64_t row, float temperature,
                       oracle_logits *logits)
{
    const gumbel_tensor *l = &input->logits;
    int64_t stride = l->stride ? l->stride : l->cols;
    logits->first_token = input->first_token;
    logits->count = l->cols;
    logits->status = GUMBEL_ROW_EMPTY;
    for (int64_t i = 0; i < l->cols; i++) {
        logits->z[i] = -INFINITY;
        logits->bound[i] = 0;
        if (!is_valid_token(input->first_token + i, input->vocab_size))
            continue;
        double value = oracle_element(l, row * stride + i);
        transform_logit(value, 0, input->scale, input->soft_cap, temperature, &logits->z[i],
                        &logits->bound[i]);
        add_status(logits, value, logits->z[i]);
    }
}

double oracle_lse(const oracle_logits *logits)
{
    double highest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < logits->count; i++)
        highest = fmax(highest, logits->z[i]);
    for (int64_t i = 0; i < logits->count; i++)
        sum += exp(logits->z[i] - highest);
    return highest + log(sum);
}

double oracle_score(const oracle_logits *logits, oracle_stream stream, int64_t token, double *bound)
{
    int64_t i = token - logits->first_token;
    double s = logits->z[i];
    *bound = logits->bound[i];
    if (!stream.greedy) {
        double g = oracle_noise(stream, token);
        s += g;
        *bound += UNIT * (5 * fmax(1, fabs(g)) + fabs(s));
    }
    return s;
}

oracle_draw oracle_pick(const oracle_logits *logits, oracle_stream stream)
{
    oracle_draw best = {-1, NAN, NAN, NAN};
    if (logits->status != GUMBEL_ROW_OK)
        return best;
    for (int64_t i = 0; i < logits->count; i++) {
        if (logits->z[i] == -INFINITY)
            continue;
        double bound;
        double s = oracle_score(logits, stream, logits->first_token + i, &bound);
        if (best.token < 0 || s > best.score)
            best = (oracle_draw){(int32_t)(logits->first_token + i), s, bound, logits->z[i]};
    }
    return best;
}
