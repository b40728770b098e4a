/* SPDX-License-Identifier: Apache-2.0
 *
 * A round of the soak test: calls run alone first, then concurrently on a stream each, mostly
 * beside hogs (soak_hog.h).
 */
#ifndef TESTS_SOAK_ROUND_H
#define TESTS_SOAK_ROUND_H

#include "soak_call.h"

/* Counts of work done so far. */
typedef struct soak_tally {
    int64_t rounds, calls, steps, hogged, compared, screened, programs, rules;
} soak_tally;

/* Runs the round that the seed and its number determine. Pool, hogs and watchdog must be open. If a
 * check fails, prints the round and returns 0. */
int soak_round_run(uint64_t seed, uint64_t number, soak_tally *tally);

/* Runs each crowded call beside a hog that leaves few multiprocessors free; CHECKs that the call
 * ends before the hog does. Hogs, pool and watchdog must be open. */
void soak_crowded(void);

/* Sleeps briefly, so that other threads run. */
void soak_sleep(void);

#endif
