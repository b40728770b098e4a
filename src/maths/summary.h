/* SPDX-License-Identifier: Apache-2.0
 *
 * The summary of a part of the vocabulary: its best token (Gumbel argmax) and its mass, the sum of
 * exp(z). All backends create, merge and read summaries with this code.
 *
 * Mass. A block of 64 tokens has the maximum z = m and the float32 sum s of exp(z - m), s in [1,
 * 64]. The block's mass s * exp(m) = v * 2^n, with n nearest to m * log2 e and 0.7 < v < 91, is
 * rounded to the integer v * 2^31 and added at bit n - 31 of a fixed-point number. The number has
 * three 64-bit words whose weights differ by 2^32, so 2^25 blocks can be added without a carry. The
 * exponent of word 0 follows the largest n; bits shifted out below the third word are less than
 * 2^-63 of the sum. The words are never rounded, so addition is exactly associative and
 * commutative.
 */
#ifndef GUMBEL_MATHS_SUMMARY_H
#define GUMBEL_MATHS_SUMMARY_H

#include "maths/elementary.h"
#include "gumbel/gumbel.h"

#define GUMBEL_FLAG_NAN         1u
#define GUMBEL_FLAG_INFINITE    2u
#define GUMBEL_FLAG_TEMPERATURE 4u
#define GUMBEL_FLAG_SLOT        8u
#define GUMBEL_FLAG_UNUSED      16u
#define GUMBEL_FLAG_LISTS       32u

/* An ulp of a float32 this large is 256, so adding ln V <= 21.5 does not change it. */
#define GUMBEL_MASS_RANGE 0x1p31f

GUMBEL_INLINE void gumbel_summary_empty(gumbel_summary *s)
{
    s->best_score = -INFINITY;
    s->best_z = -INFINITY;
    s->best_id = -1;
    s->max_z = -INFINITY;
    s->mass[0] = s->mass[1] = s->mass[2] = 0;
    s->mass_exponent = INT32_MIN;
    s->flags = 0;
}

/* Shifts the words so that word 0 has `exponent`; does nothing if its exponent is as large already.
 */
GUMBEL_INLINE void gumbel_mass_shift_to(gumbel_summary *s, int32_t exponent)
{
    int64_t steps = (int64_t)exponent - s->mass_exponent;
    if (steps > 0) {
        s->mass[2] = steps == 1 ? s->mass[1] : steps == 2 ? s->mass[0] : 0;
        s->mass[1] = steps == 1 ? s->mass[0] : 0;
        s->mass[0] = 0;
        s->mass_exponent = exponent;
    }
}

/* Adds `value` to the word with `exponent`; drops it if it is below the third word. */
GUMBEL_INLINE void gumbel_mass_add_word(gumbel_summary *s, int64_t exponent, uint64_t value)
{
    int64_t below = (int64_t)s->mass_exponent - exponent;
    for (int i = 0; i < 3; i++) /* constant indices, so that words stay in registers */
        s->mass[i] += i == below ? value : 0;
}

/* 2^x for |x| <= 1/2: Taylor series of exp(x ln 2) to degree 8; error below 2^-32, far below that
 * of a float32 sum. */
GUMBEL_INLINE double gumbel_exp2_small(double x)
{
    static const double terms[] = {1.0,       1.0,       1.0 / 2,    1.0 / 6,    1.0 / 24,
                                   1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320};
    double y = x * 0x1.62e42fefa39efp-1, sum = terms[8];
    for (int k = 7; k >= 0; k--)
        sum = fma(sum, y, terms[k]);
    return sum;
}

/* Adds the mass of a block with largest z `m` and sum = sum of exp(z - m); nothing if m is not
 * finite. */
GUMBEL_INLINE void gumbel_mass_add_block(gumbel_summary *s, float m, float sum)
{
    if (!(fabsf(m) < GUMBEL_MASS_RANGE))
        return;
    /* n = m log2 e to the nearest integer: adding 1.5 * 2^52 leaves it in the low bits. */
    double t = (double)m * 0x1.71547652b82fep+0, shifted = t + 0x1.8p52;
    double fraction = t - (shifted - 0x1.8p52);
    int64_t n;
    memcpy(&n, &shifted, sizeof n);
    n = (int64_t)((uint64_t)n << 13) >> 13;
    uint64_t value = (uint64_t)(int64_t)fma((double)sum * gumbel_exp2_small(fraction), 0x1p31, 0.5);
    int64_t bit = n - 31;
    int32_t word = (int32_t)(bit >> 5);
    int shift = (int)(bit & 31);
    gumbel_mass_shift_to(s, word + 1);
    gumbel_mass_add_word(s, word + 1, value >> (32 - shift));
    gumbel_mass_add_word(s, word, (value << shift) & 0xffffffffu);
}

/* Updates the best token. NaN never wins; a tie goes to the lower id. */
GUMBEL_INLINE void gumbel_summary_offer(gumbel_summary *s, float score, float z, int32_t id)
{
    if (score > s->best_score || (score == s->best_score && id < s->best_id && score > -INFINITY)) {
        s->best_score = score;
        s->best_z = z;
        s->best_id = id;
    }
}

GUMBEL_INLINE void gumbel_summary_merge(gumbel_summary *into, const gumbel_summary *from)
{
    if (from->best_id >= 0)
        gumbel_summary_offer(into, from->best_score, from->best_z, from->best_id);
    into->max_z = from->max_z > into->max_z ? from->max_z : into->max_z;
    into->flags |= from->flags;
    gumbel_mass_shift_to(into, from->mass_exponent);
    if (from->mass_exponent != INT32_MIN)
        for (int i = 0; i < 3; i++)
            gumbel_mass_add_word(into, (int64_t)from->mass_exponent - i, from->mass[i]);
}

/* Sanitizes a summary from the caller, which may hold any bytes: fields with values that no draw
 * writes are set as in an empty summary, so that the result does not depend on the order of
 * merging. Summaries that draws wrote stay unchanged. */
GUMBEL_INLINE gumbel_summary gumbel_summary_sound(const gumbel_summary *s)
{
    gumbel_summary empty, sound = *s;
    gumbel_summary_empty(&empty);
    if (s->best_id < 0 || !(s->best_score > -INFINITY)) {
        sound.best_score = empty.best_score;
        sound.best_z = empty.best_z;
        sound.best_id = empty.best_id;
    }
    if (s->max_z != s->max_z)
        sound.max_z = empty.max_z;
    if (s->mass_exponent == empty.mass_exponent)
        memcpy(sound.mass, empty.mass, sizeof sound.mass);
    return sound;
}

/* The bits of the best token's z, then of its score: a tie-break for summaries whose best tokens
 * and scores are equal. */
GUMBEL_INLINE uint64_t gumbel_summary_best_bits(const gumbel_summary *s)
{
    uint32_t z, score;
    memcpy(&z, &s->best_z, sizeof z);
    memcpy(&score, &s->best_score, sizeof score);
    return (uint64_t)z << 32 | score;
}

/* gumbel_summary_merge() for summaries that may hold any bytes. The merge is commutative bit for
 * bit, also in the sign of zero, and if both summaries have the same best token. */
GUMBEL_INLINE void gumbel_summary_merge_any(gumbel_summary *into, const gumbel_summary *from)
{
    gumbel_summary sound = gumbel_summary_sound(from);
    *into = gumbel_summary_sound(into);
    if (into->max_z == 0.0f && sound.max_z == 0.0f && signbit(into->max_z))
        into->max_z = sound.max_z;
    if (sound.best_id == into->best_id && sound.best_score == into->best_score &&
        gumbel_summary_best_bits(&sound) > gumbel_summary_best_bits(into)) {
        into->best_score = sound.best_score;
        into->best_z = sound.best_z;
    }
    gumbel_summary_merge(into, &sound);
}

/* ln of the mass; max_z if max_z is outside the range of the fixed-point number. */
GUMBEL_INLINE double gumbel_mass_log(const gumbel_summary *s)
{
    if (!(fabsf(s->max_z) < GUMBEL_MASS_RANGE))
        return s->max_z;
    double words = ((double)s->mass[0] * 0x1p32 + (double)s->mass[1]) * 0x1p32 + (double)s->mass[2];
    return log(words) + 32.0 * ((double)s->mass_exponent - 2.0) * 0x1.62e42fefa39efp-1;
}

GUMBEL_INLINE float gumbel_summary_lse(const gumbel_summary *s)
{
    return (float)gumbel_mass_log(s);
}

/* z - lse, but 0 if the rounding of lse makes it positive. NaN stays. */
GUMBEL_INLINE float gumbel_logprob(float z, float lse)
{
    float logprob = z - lse;
    return logprob > 0.0f ? 0.0f : logprob;
}

/* The probability of a token whose z is max_z; NaN if the row has no distribution. */
GUMBEL_INLINE float gumbel_summary_max_probability(const gumbel_summary *s)
{
    if (s->flags || s->max_z == -INFINITY)
        return NAN;
    return (float)exp((double)s->max_z - gumbel_mass_log(s));
}

/* exp(z - max z), but 0 below e^-87: an unnormalised probability (eq. 13). */
GUMBEL_INLINE float gumbel_relative_probability(float z, float max_z)
{
    float x = z - max_z;
    return x < GUMBEL_EXP_LOWEST ? 0.0f : gumbel_exp(x);
}

GUMBEL_INLINE gumbel_row_status gumbel_summary_status(const gumbel_summary *s)
{
    if (s->flags & GUMBEL_FLAG_UNUSED)
        return GUMBEL_ROW_UNUSED;
    if (s->flags & GUMBEL_FLAG_LISTS)
        return GUMBEL_ROW_LISTS;
    if (s->flags & GUMBEL_FLAG_SLOT)
        return GUMBEL_ROW_SLOT;
    if (s->flags & GUMBEL_FLAG_TEMPERATURE)
        return GUMBEL_ROW_TEMPERATURE;
    if (s->flags & GUMBEL_FLAG_NAN)
        return GUMBEL_ROW_NAN;
    if (s->flags & GUMBEL_FLAG_INFINITE)
        return GUMBEL_ROW_INFINITE;
    return s->best_id < 0 ? GUMBEL_ROW_EMPTY : GUMBEL_ROW_OK;
}

/* Sets `count` summaries empty. */
GUMBEL_INLINE void gumbel_summaries_clear(gumbel_summary *summaries, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        gumbel_summary_empty(&summaries[i]);
}

/* into[i] = merge(into[i], from[i]) for i < count. */
GUMBEL_INLINE void gumbel_summaries_merge(gumbel_summary *into, const gumbel_summary *from,
                                          int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        gumbel_summary_merge_any(&into[i], &from[i]);
}

#endif
