/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT      t = the first token at which the sum of exp(z_i - max z) exceeds u times the whole sum
 * COST      4 V bytes stored, 4 V read, 4 V read and 4 V written, 2 V read on average; about 12
 *           operations a token in vectors of 16
 * NUMERICS  exp by 2^n times a polynomial of degree 6 on [-ln2/2, ln2/2], relative error 2e-7; the
 *           sum in float64 by blocks of 16 tokens. A baseline: good to about 1e-6 of mass.
 * BUILD     Compiled with -ffp-contract=fast.
 */
#include "materialised.h"

#include <math.h>
#include <string.h>

#include "thread_ranges.h"
#include "vectors.h"

typedef int32_t ints16 __attribute__((vector_size(16)));
typedef int32_t ints32 __attribute__((vector_size(32)));
typedef int32_t ints64 __attribute__((vector_size(64)));

/* Passes process whole blocks of the widest register; rows may be unaligned. */
enum { BLOCK = 16 };

typedef float (*find_max)(const float *logits, int64_t count);
typedef double (*sum_exponentials)(const float *logits, int64_t count, float max, float factor,
                                   float *out);

/* `count` is a multiple of BLOCK. */
#define DEFINE_MAX(name, target, lanes, masks)                                                     \
    target static float name(const float *logits, int64_t count)                                   \
    {                                                                                              \
        lanes best = (lanes){0} - INFINITY;                                                        \
        float result = -INFINITY;                                                                  \
                                                                                                   \
        for (int64_t i = 0; i < count; i += (int64_t)sizeof(lanes) / 4) {                          \
            lanes x;                                                                               \
            masks larger;                                                                          \
                                                                                                   \
            memcpy(&x, logits + i, sizeof x);                                                      \
            larger = x > best;                                                                     \
            best = (lanes)(((masks)x & larger) | ((masks)best & ~larger));                         \
        }                                                                                          \
        for (size_t lane = 0; lane < sizeof(lanes) / 4; lane++) {                                  \
            result = best[lane] > result ? best[lane] : result;                                    \
        }                                                                                          \
        return result;                                                                             \
    }

DEFINE_MAX(max_128, , floats16, ints16)
DEFINE_MAX(max_256, TARGET_AVX2, floats32, ints32)
DEFINE_MAX(max_512, TARGET_AVX512, floats64, ints64)

/* out[i] = exp((logits[i] - max) * factor) and their sum; n is found by adding 1.5 * 2^23, which
 * leaves the rounded integer in the low bits of the sum. Arguments under -87 count as -87. */
#define DEFINE_EXPONENTIALS(name, target, lanes, masks)                                            \
    target static double name(const float *logits, int64_t count, float max, float factor,         \
                              float *out)                                                          \
    {                                                                                              \
        const float magic = 12582912.0f;                                                           \
        double total = 0;                                                                          \
        lanes sum = {0};                                                                           \
                                                                                                   \
        for (int64_t i = 0; i < count; i += (int64_t)sizeof(lanes) / 4) {                          \
            lanes x, shifted, power, r;                                                            \
            masks inside;                                                                          \
                                                                                                   \
            memcpy(&x, logits + i, sizeof x);                                                      \
            x = (x - max) * factor;                                                                \
            inside = x > -87.0f;                                                                   \
            x = (lanes)(((masks)x & inside) | ((masks)((lanes){0} - 87.0f) & ~inside));            \
            shifted = x * 1.44269504f + magic;                                                     \
            r = x - (shifted - magic) * 0.693359375f;                                              \
            r = r + (shifted - magic) * 2.12194440e-4f;                                            \
            power = (lanes)(((masks)shifted - 0x4B400000 + 127) << 23);                            \
            x = r * 1.38888889e-3f + 8.33333333e-3f;                                               \
            x = x * r + 4.16666667e-2f;                                                            \
            x = x * r + 1.66666667e-1f;                                                            \
            x = x * r + 0.5f;                                                                      \
            x = x * r + 1.0f;                                                                      \
            x = (x * r + 1.0f) * power;                                                            \
            memcpy(out + i, &x, sizeof x);                                                         \
            sum += x;                                                                              \
            if (i % 1024 == 0) {                                                                   \
                for (size_t lane = 0; lane < sizeof(lanes) / 4; lane++) {                          \
                    total += (double)sum[lane];                                                    \
                }                                                                                  \
                sum = (lanes){0};                                                                  \
            }                                                                                      \
        }                                                                                          \
        for (size_t lane = 0; lane < sizeof(lanes) / 4; lane++) {                                  \
            total += (double)sum[lane];                                                            \
        }                                                                                          \
        return total;                                                                              \
    }

DEFINE_EXPONENTIALS(exponentials_128, , floats16, ints16)
DEFINE_EXPONENTIALS(exponentials_256, TARGET_AVX2, floats32, ints32)
DEFINE_EXPONENTIALS(exponentials_512, TARGET_AVX512, floats64, ints64)

struct passes {
    find_max max;
    sum_exponentials exponentials;
};

static struct passes find_passes(gumbel_isa isa)
{
    switch (isa) {
    case GUMBEL_ISA_AVX512:
        return (struct passes){max_512, exponentials_512};
    case GUMBEL_ISA_AVX2:
        return (struct passes){max_256, exponentials_256};
    default:
        return (struct passes){max_128, exponentials_128};
    }
}

/* The first index at which the running sum exceeds `target`; the last index if none does. */
static int64_t find_token(const float *weights, int64_t count, double target)
{
    double sum = 0;
    int64_t i = 0;

    for (; i + BLOCK <= count; i += BLOCK) {
        float part[4] = {0};

        for (int lane = 0; lane < BLOCK; lane++) {
            part[lane % 4] += weights[i + lane];
        }
        if (sum + (double)(part[0] + part[1] + part[2] + part[3]) > target) {
            break;
        }
        sum += (double)(part[0] + part[1] + part[2] + part[3]);
    }
    for (; i < count - 1; i++) {
        sum += (double)weights[i];
        if (sum > target) {
            break;
        }
    }
    return i;
}

static int32_t draw_row(const struct materialised *work, int64_t b)
{
    const struct passes passes = find_passes(work->isa);
    const float *logits = work->logits + b * work->vocab;
    float *probabilities = work->probabilities + b * work->vocab;
    const int64_t whole = work->vocab / BLOCK * BLOCK;
    float max = passes.max(logits, whole);
    double total = 0;

    for (int64_t i = whole; i < work->vocab; i++) {
        max = logits[i] > max ? logits[i] : max;
    }
    total = passes.exponentials(logits, whole, max, work->inverse_temperature, probabilities);
    for (int64_t i = whole; i < work->vocab; i++) {
        probabilities[i] = expf((logits[i] - max) * work->inverse_temperature);
        total += (double)probabilities[i];
    }
    return (int32_t)find_token(probabilities, work->vocab, work->uniforms[b] * total);
}

static void draw_rows(void *argument, int32_t index, int32_t threads)
{
    const struct materialised *work = argument;

    for (int64_t b = index; b < work->batch; b += threads) {
        float *stored = work->stored + b * work->vocab;

        /* Stores as the product does; the values do not affect the time. */
        for (int64_t i = 0; i < work->vocab; i++) {
            stored[i] = (float)b;
        }
        work->tokens[b] = draw_row(work, b);
    }
}

void materialised_draw(const struct materialised *work)
{
    const int32_t threads = work->batch < work->threads ? (int32_t)work->batch : work->threads;

    run_on_threads(threads, draw_rows, (void *)work);
}
