/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel arguments of the rules REJECTION and BLOCK. Each row of both models is split into `parts`
 * ranges of tokens, one for each CTA. The first kernel sums the masses; for BLOCK a second one sums
 * the residuals. The last CTA of a request sets its verdicts. The last kernel finds the residual
 * argmax of rows whose verdict calls for one, and the last CTA of a request walks it. No CTA waits
 * for another.
 */
#ifndef GUMBEL_DRAFTS_RULE_PARAMS_H
#define GUMBEL_DRAFTS_RULE_PARAMS_H

#include "drafts/rules.h"

/* Used if q is computed for a few tokens only (proposal.dots): a warp's tokens with the best scores
 * under the target, and an upper bound on the scores of its other tokens. */
#define GUMBEL_SHORT_LIST_TOKENS 4
typedef struct gumbel_short_list {
    gumbel_contender of[GUMBEL_SHORT_LIST_TOKENS]; /* sorted */
    float bound;
} gumbel_short_list;

typedef struct gumbel_rule_params {
    gumbel_verification verification;
    gumbel_proposal proposal;
    float inverse_caps[2];        /* of the target, of the draft; 0: no soft-cap */
    int32_t parts;                /* CTAs per row in this launch */
    int64_t chunk;                /* tokens of each */
    uint64_t tag;                 /* of this launch, as in cuda_params */
    gumbel_summary *masses;       /* [2, n, parts]: of the target's rows, the draft's */
    uint64_t *row_counters;       /* [2, n]: the tag, and below it the parts that have ended */
    uint64_t *counters;           /* [R]: the tag, and below it the rows or parts that have ended */
    gumbel_contender *contenders; /* [n, parts] */
    gumbel_short_list *lists;     /* [R, parts, warps of a CTA] if proposal.dots */
} gumbel_rule_params;

#endif
