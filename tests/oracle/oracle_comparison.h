/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares each row of the library's results with the oracle of requests (oracle_request.h). Kept
 * set, tokens, scores, ranks, counts and the n most likely tokens must be equal; log-normalisers
 * and log-probabilities must be within the oracle's error bounds.
 *
 * In a row near a cutoff, float32 and double may disagree about a token. Such rows are counted.
 * Their kept set must be between the oracle's smallest and largest, and the other outputs are
 * compared over the library's kept set. No test framework.
 */
#ifndef TESTS_ORACLE_COMPARISON_H
#define TESTS_ORACLE_COMPARISON_H

#include "requests.h"

typedef struct verdicts {
    int64_t rows, faulty;    /* rows compared, and rows among them without a token to draw */
    int64_t near_cutoffs;    /* rows near a cutoff */
    int64_t other_kept_sets; /* rows near a cutoff with another kept set than the oracle's */
    int64_t truncated;       /* rows that lost a token to truncation */
    double worst;            /* the largest error of a float divided by its bound */
} verdicts;

/* Compares a request's outcome, and the result of gumbel_process_logits() on `device`, with the
 * oracle. Returns 1, or prints an error and returns 0. */
int compare_with_oracle(gumbel_device *device, const request *req, const outcome *drawn,
                        verdicts *seen);

/* Prints a line about all rows compared. */
void print_verdicts(const char *what, const verdicts *seen);

#endif
