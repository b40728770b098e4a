/* SPDX-License-Identifier: Apache-2.0
 *
 * The rate at which a token `gap` nats under a dominant one is drawn, relative to the truth
 * 1 / (1 + e^gap), by enumeration of the noise that a device makes.
 *
 * The rare token wins where its exponential E is below that of the dominant one times e^-gap, so
 * its rate is the mean of exp(-E e^gap) over all words. Beyond E e^gap = 60 nothing is added, so
 * for gaps from 14 on the words below 2^18 are enough. Words below 256 take 32 further bits; of
 * these a sample is sorted and integrated by the trapezoidal rule, 2^19 of them for the word 0,
 * where the rate changes fastest.
 */
#ifndef TESTS_TAIL_RATES_H
#define TESTS_TAIL_RATES_H

#include "place.h"

/* The noise g of `count` places. */
typedef void (*tail_noise)(const place *places, int64_t count, float *g);

typedef struct tail_rates tail_rates;

/* Enumerate; free it with tail_rates_free(). */
tail_rates *tail_rates_make(tail_noise noise);
void tail_rates_free(tail_rates *made);

/* The rate at `gap` >= 14, relative to the truth. */
double tail_rate(const tail_rates *made, double gap);

#endif
