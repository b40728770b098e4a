/* SPDX-License-Identifier: Apache-2.0
 *
 * The judge of requests: what the library gave for each row against oracle_request.h. Kept set,
 * tokens, scores, ranks, counts and the n most likely must be equal; log-normalisers and
 * log-probabilities within the oracle's bounds.
 *
 * A row near a cut, where float32 and double may disagree about a token, is counted, and must keep
 * what the oracle keeps at least, and no more than it keeps at most; everything else is then judged
 * over what the library kept. No test framework.
 */
#ifndef TESTS_JUDGE_H
#define TESTS_JUDGE_H

#include "requests.h"

typedef struct verdicts {
    int64_t rows, spoilt; /* rows judged, and those of them without a token to draw */
    int64_t near_cuts;    /* rows near a cut */
    int64_t other_cuts;   /* those of them that keep another set than the oracle */
    int64_t truncated;    /* rows that lost a token to truncation */
    double worst;         /* the largest error of a float, as a share of its bound */
} verdicts;

/* Judge a request's outcome on `device`, with gumbel_process_logits() of the same. Returns 1, or 0
 * after printing what is wrong. */
int judge(gumbel_device *device, const request *req, const outcome *drawn, verdicts *seen);

/* Print a line about all rows judged. */
void print_verdicts(const char *what, const verdicts *seen);

#endif
