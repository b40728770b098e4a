/* SPDX-License-Identifier: Apache-2.0
 *
 * The rate at which a token `gap` nats under a dominant one is drawn, relative to the truth
 * 1 / (1 + e^gap), by enumeration of the noise that a device makes.
 *
 * Where the dominant token stands in another block, the rare one wins if its exponential E is below
 * that of the dominant one times e^-gap, so its rate is the mean of exp(-E e^gap) over all words.
 * In the same block both have the least exponential m in common: the rare one wins if it is the one
 * that has the least and the other's own is above m (e^gap - 1), or if neither has it and the
 * other's own is above E e^gap - m.
 *
 * A token that has the least exponential of its block draws it from 58 bits, by places that hold
 * them: all first words from 2^8 to 2^12; of the rest strata from each power of two to the next, of
 * which three stand for all by Gauss's rule. Other tokens' E is the sum of two words', by the
 * oracle's own float32 steps, of coarser strata.
 */
#ifndef TESTS_TAIL_RATES_H
#define TESTS_TAIL_RATES_H

#include "place.h"

/* The noise g of `count` places. */
typedef void (*tail_noise)(const place *places, int64_t count, float *g);

typedef struct tail_rates tail_rates;

/* Enumerate by `parts` strata an octave, 128 for errors of some 10^-8; free it with
 * tail_rates_free(). */
tail_rates *tail_rates_make(tail_noise noise, int parts);
void tail_rates_free(tail_rates *generated);

/* The rate, relative to the truth, at a gap of 0 to 32. */
double tail_rate(const tail_rates *generated, double gap, int same_block);

#endif
