/* SPDX-License-Identifier: Apache-2.0
 *
 * The rate at which a rare token, `gap` nats below a dominant one, is drawn, relative to the exact
 * 1 / (1 + e^gap). The rate is computed by enumeration of a device's noise.
 *
 * If the dominant token is in another block, the rare one wins if its exponential E is below
 * that of the dominant one times e^-gap, so its rate is the mean of exp(-E e^gap) over all words.
 * In the same block both exponentials contain the block's least exponential m. The rare token wins
 * if m is its own and the dominant token's further exponential is above m (e^gap - 1), or if m is
 * neither's and the dominant token's further exponential is above E e^gap - m.
 *
 * The least exponential of a block depends on 58 random bits; place.h finds places with given bits.
 * All first words from 2^8 to 2^12 are enumerated. The other words are divided into strata, from
 * each power of two to the next; three words stand for a stratum, by Gauss's quadrature. The E of
 * another token is the sum of the exponentials of two words, by the oracle's float32 steps, with
 * coarser strata.
 */
#ifndef TESTS_TAIL_RATES_H
#define TESTS_TAIL_RATES_H

#include "noise_place.h"

/* The noise g of `count` places. */
typedef void (*tail_noise)(const noise_place *places, int64_t count, float *g);

typedef struct tail_rates tail_rates;

/* Enumerates with `parts` strata for each factor of two; 128 give errors of about 10^-8. Free with
 * tail_rates_free(). */
tail_rates *tail_rates_make(tail_noise noise, int parts);
void tail_rates_free(tail_rates *generated);

/* The rate relative to the exact one, for a gap of 0 to 32. */
double tail_rate(const tail_rates *generated, double gap, int same_block);

#endif
