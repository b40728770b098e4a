/* SPDX-License-Identifier: Apache-2.0
 *
 * A round of a soak: calls that are drawn alone, and again side by side on streams of their own,
 * mostly beside hogs.
 */
#ifndef TESTS_SOAK_ROUND_H
#define TESTS_SOAK_ROUND_H

#include "soak_call.h"

/* Counts of work done so far. */
typedef struct soak_tally {
    int64_t rounds, calls, steps, hogged, compared, screened;
} soak_tally;

/* Run a round, which the seed and its number determine. Pool, hogs and watchdog are there. Gives
 * 0 where a check failed, and has printed the round. */
int soak_round_run(uint64_t seed, uint64_t number, soak_tally *tally);

/* The crowded calls, each beside a hog that leaves few multiprocessors: CHECKs that they end
 * before the hog does. Hogs, pool and watchdog are there. */
void soak_crowded(void);

/* Let other threads run for a moment. */
void soak_sleep(void);

#endif
