/* SPDX-License-Identifier: Apache-2.0
 *
 * Judges each row of the library's results by oracle_request.h. Kept set, tokens, scores, ranks,
 * counts and the n most likely tokens must be equal; log-normalisers and log-probabilities must be
 * within the oracle's bounds.
 *
 * In a row near a cutoff, float32 and double may disagree about a token. Such rows are counted;
 * their kept set must be between the oracle's smallest and largest, and the other outputs are
 * judged over the library's kept set. No test framework.
 */
#ifndef TESTS_JUDGE_H
#define TESTS_JUDGE_H

#include "requests.h"

typedef struct verdicts {
    int64_t rows, faulty;    /* rows judged, and those of them without a token to draw */
    int64_t near_cutoffs;    /* rows near a cutoff */
    int64_t other_kept_sets; /* those of them that keep another set than the oracle */
    int64_t truncated;       /* rows that lost a token to truncation */
    double worst;            /* the largest error of a float divided by its bound */
} verdicts;

/* Judges a request's outcome on `device`, and gumbel_process_logits() of its logits. Returns 1, or
 * prints an error and returns 0. */
int judge_outcome(gumbel_device *device, const request *req, const outcome *drawn, verdicts *seen);

/* Print a line about all rows judged. */
void print_verdicts(const char *what, const verdicts *seen);

#endif
