/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle.h"

#include <math.h>
#include <string.h>

#define UNIT 0x1p-24 /* half an ulp of 1 in float32 */

/* 1/T grows no further: colder rows draw as this one. */
#define HIGHEST_INVERSE 0x1p100f

void oracle_philox(const uint32_t counter[4], const uint32_t key[2], int rounds, uint32_t out[4])
{
    uint32_t l0 = counter[0], r0 = counter[1], l1 = counter[2], r1 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < rounds; round++) {
        uint64_t product0 = 0xD2511F53ull * l0;
        uint64_t product1 = 0xCD9E8D57ull * l1;
        l0 = (uint32_t)(product1 >> 32) ^ r0 ^ k0;
        r0 = (uint32_t)product1;
        l1 = (uint32_t)(product0 >> 32) ^ r1 ^ k1;
        r1 = (uint32_t)product0;
        k0 += 0x9E3779B9u; /* the golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    out[0] = l0;
    out[1] = r0;
    out[2] = l1;
    out[3] = r1;
}

double oracle_uniform(uint32_t r, uint32_t r2)
{
    if (r < 256)
        return ldexp(ldexp(r, 32) + r2 + 0.5, -64);
    return ldexp(r + 0.5, -32);
}

double oracle_noise_of_word(uint32_t r, uint32_t r2)
{
    double exponential =
        r < 0x80000000u ? -log1p(-oracle_uniform(r, r2)) : -log(ldexp((double)~r + 0.5, -32));
    return -log(exponential);
}

double oracle_noise(uint64_t seed, uint64_t position, uint32_t sample, uint32_t domain,
                    int64_t token)
{
    if (position >> 32)
        seed = oracle_row_seed(seed, UINT64_MAX - (position >> 32));
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t counter[4] = {(uint32_t)(token >> 2), (uint32_t)position, sample, domain};
    uint32_t first[4], second[4] = {0};
    oracle_philox(counter, key, 10, first);
    if (first[token & 3] < 256) {
        counter[3] |= 0x80000000u;
        oracle_philox(counter, key, 10, second);
    }
    return oracle_noise_of_word(first[token & 3], second[token & 3]);
}

uint64_t oracle_row_seed(uint64_t seed, uint64_t row)
{
    uint64_t mixed = row * 0x9E3779B97F4A7C15ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
    return seed ^ mixed ^ (mixed >> 31);
}

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

/* eq. 2 for one logit l, known to within `error`. */
static void transform(double l, double error, float scale, float soft_cap, float temperature,
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

/* The status of a row after its logits are known; `l` as the transforms met them. */
static void note(oracle_logits *logits, double l, double z)
{
    if (isnan(l) || isnan(z))
        logits->status = GUMBEL_ROW_NAN;
    else if ((l == INFINITY || z == INFINITY) && logits->status != GUMBEL_ROW_NAN)
        logits->status = GUMBEL_ROW_INFINITE;
    else if (z > -INFINITY && logits->status == GUMBEL_ROW_EMPTY)
        logits->status = GUMBEL_ROW_OK;
}

static int counts(int64_t token, int64_t vocab_size)
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
        if (!counts(head->first_token + i, head->vocab_size))
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
        transform(l, error, head->scale, head->soft_cap, temperature, &logits->z[i],
                  &logits->bound[i]);
        note(logits, l, logits->z[i]);
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
        if (!counts(input->first_token + i, input->vocab_size))
            continue;
        double value = oracle_element(l, row * stride + i);
        transform(value, 0, input->scale, input->soft_cap, temperature, &logits->z[i],
                  &logits->bound[i]);
        note(logits, value, logits->z[i]);
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
        double g = oracle_noise(stream.seed, stream.position, stream.sample, stream.domain, token);
        s += g;
        *bound += UNIT * (4 * fmax(1, fabs(g)) + fabs(s));
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
