/* SPDX-License-Identifier: Apache-2.0
 *
 * Agreement of an emulated product's draws with the CPU backend, which sums dot products in another
 * order.
 */
#ifndef TESTS_EMULATOR_AGREEMENT_H
#define TESTS_EMULATOR_AGREEMENT_H

extern "C" {
#include "outcome.h"
}

#include <stdio.h>

#include <algorithm>
#include <cmath>

static inline bool near(float x, float y, float scale)
{
    return (std::isnan(x) && std::isnan(y)) || x == y ||
           fabsf(x - y) <= 1e-3f * std::max(1.0f, fabsf(scale));
}

/* Whether the emulated draw equals the CPU's: if tokens differ, their scores are close. */
static inline bool agree(const outcome *host, const outcome *ours, outcome_parts parts,
                         const char *what, int *near_ties)
{
    for (int i = 0; i < (int)host->batch * host->samples; i++) {
        int b = i / host->samples;
        bool same = host->tokens[i] == ours->tokens[i];
        bool good = host->status[b] == ours->status[b] &&
                    near(host->scores[i], ours->scores[i], host->scores[i]);
        if (parts & OUTCOME_MASS)
            good = good && near(host->lse[b], ours->lse[b], host->lse[b]) &&
                   (!same || near(host->logprobs[i], ours->logprobs[i], host->lse[b]));
        *near_ties += good && !same;
        if (good)
            continue;
        printf("%s: draw %d: status %d token %d score %a lse %a emulated, %d %d %a %a by the CPU\n",
               what, i, (int)ours->status[b], (int)ours->tokens[i], (double)ours->scores[i],
               (double)ours->lse[b], (int)host->status[b], (int)host->tokens[i],
               (double)host->scores[i], (double)host->lse[b]);
        return false;
    }
    return true;
}

#endif
