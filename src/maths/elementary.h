/* SPDX-License-Identifier: Apache-2.0
 *
 * Logarithm, exponential and hyperbolic tangent as fixed sequences of float32 operations, so that
 * every backend that follows the same sequence gets the same bits (docs/maths.md, section 4). Each
 * multiply, add and fma below is one IEEE-754 operation rounded to nearest even; the compiler must
 * not contract or reassociate them. Coefficients: script/fit_polynomials.py.
 */
#ifndef GUMBEL_MATHS_ELEMENTARY_H
#define GUMBEL_MATHS_ELEMENTARY_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* C and CUDA compile one code. */
#ifdef __CUDACC__
#define GUMBEL_INLINE static __host__ __device__ __forceinline__
#else
#define GUMBEL_INLINE static inline
#endif

/* ln 2 in two parts; the high one has 9 significant bits, so that exponent * high is exact. */
#define GUMBEL_LN2_HIGH 0x1.63p-1f
#define GUMBEL_LN2_LOW  -0x1.bd0106p-13f
#define GUMBEL_LOG2E    0x1.715476p+0f
/* Adding and subtracting 1.5 * 2^23 rounds a float below 2^22 to the nearest integer. */
#define GUMBEL_ROUNDING 0x1.8p+23f
/* Arguments below this count as this: exp() of it is 1.6e-38, a normal float. */
#define GUMBEL_EXP_LOWEST -87.0f

/* clang-format off */
/* (log1p(f) - f + f^2 / 2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1], degree 8. */
#define GUMBEL_LOG_TERMS 9
#define GUMBEL_LOG_POLYNOMIAL                                                                      \
    {0x1.55553cp-2f,  -0x1.00000ap-2f, 0x1.99a97ap-3f,  -0x1.555dfep-3f, 0x1.22e71p-3f,           \
     -0x1.fb93f4p-4f, 0x1.ea80aap-4f,  -0x1.e295acp-4f, 0x1.1231e6p-4f}

/* (exp(x) - 1 - x) / x^2 on [-ln 2 / 2, ln 2 / 2], degree 4. */
#define GUMBEL_EXP_TERMS 5
#define GUMBEL_EXP_POLYNOMIAL                                                                      \
    {0x1p-1f, 0x1.55548cp-3f, 0x1.5554e4p-5f, 0x1.123d02p-7f, 0x1.6d514ap-10f}

/* (tanh(a) - a) / a^3 in a^2 on [0, 0.625], degree 4. */
#define GUMBEL_TANH_TERMS 5
#define GUMBEL_TANH_POLYNOMIAL                                                                     \
    {-0x1.555532p-2f, 0x1.110708p-3f, -0x1.b8395ep-5f, 0x1.521744p-6f, -0x1.75a99p-8f}
/* clang-format on */
#define GUMBEL_TANH_SMALL 0.625f

GUMBEL_INLINE uint32_t gumbel_bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

GUMBEL_INLINE float gumbel_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Horner's rule, one fma a term. */
GUMBEL_INLINE float gumbel_polynomial(const float *terms, int count, float x)
{
    float sum = terms[count - 1];
    for (int i = count - 2; i >= 0; i--)
        sum = fmaf(sum, x, terms[i]);
    return sum;
}

/* exponent * ln 2 + log1p(f) for f in [sqrt(1/2) - 1, sqrt(2) - 1] and an integer exponent. */
GUMBEL_INLINE float gumbel_log_assemble(float exponent, float f)
{
    static const float terms[GUMBEL_LOG_TERMS] = GUMBEL_LOG_POLYNOMIAL;
    float square = f * f;
    float tail =
        fmaf(square * f, gumbel_polynomial(terms, GUMBEL_LOG_TERMS, f), exponent * GUMBEL_LN2_LOW);
    return fmaf(exponent, GUMBEL_LN2_HIGH, f + fmaf(-0.5f, square, tail));
}

/* A positive normal x as 2^exponent * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); f is exact. */
GUMBEL_INLINE void gumbel_log_split(float x, float *exponent, float *f)
{
    uint32_t shifted = gumbel_bits_of(x) - 0x3f3504f3u; /* the bits of sqrt(1/2) */
    *exponent = (float)((int32_t)shifted >> 23);
    *f = gumbel_float_of((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
}

/* log(x) for a positive normal x. Where x is near 1 the relative error stays below 2 ulp. */
GUMBEL_INLINE float gumbel_log(float x)
{
    float exponent, f;
    gumbel_log_split(x, &exponent, &f);
    return gumbel_log_assemble(exponent, f);
}

/* exp(x) for x <= 0, clamped to GUMBEL_EXP_LOWEST. */
GUMBEL_INLINE float gumbel_exp(float x)
{
    static const float terms[GUMBEL_EXP_TERMS] = GUMBEL_EXP_POLYNOMIAL;
    float clamped = x > GUMBEL_EXP_LOWEST ? x : GUMBEL_EXP_LOWEST;
    float shifted = fmaf(clamped, GUMBEL_LOG2E, GUMBEL_ROUNDING);
    float exponent = shifted - GUMBEL_ROUNDING;
    float f = fmaf(exponent, -GUMBEL_LN2_LOW, fmaf(exponent, -GUMBEL_LN2_HIGH, clamped));
    float p = fmaf(f * f, gumbel_polynomial(terms, GUMBEL_EXP_TERMS, f), f) + 1.0f;
    return gumbel_float_of(gumbel_bits_of(p) + (gumbel_bits_of(shifted) << 23));
}

/* tanh(x): an odd polynomial near 0, else 1 - 2 e / (1 + e) with e = exp(-2 |x|). */
GUMBEL_INLINE float gumbel_tanh(float x)
{
    static const float terms[GUMBEL_TANH_TERMS] = GUMBEL_TANH_POLYNOMIAL;
    float a = fabsf(x);
    float square = a * a;
    float small = fmaf(a * square, gumbel_polynomial(terms, GUMBEL_TANH_TERMS, square), a);
    float e = gumbel_exp(a * -2.0f);
    float large = 1.0f - (e + e) / (1.0f + e);
    return copysignf(a < GUMBEL_TANH_SMALL ? small : large, x);
}

#endif
