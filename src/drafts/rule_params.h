/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels are handed that weigh drafts. Both models' rows are cut into parts, a CTA each:
 * first their masses, of which the last CTA of a request makes its verdicts; for a block the sums
 * that these need; then a race in the rows whose verdict asks for one, behind which the last CTA of
 * a request has it walk. No CTA waits for another.
 */
#ifndef GUMBEL_DRAFTS_RULE_PARAMS_H
#define GUMBEL_DRAFTS_RULE_PARAMS_H

#include "drafts/rules.h"

/* Where q of few tokens alone is known: the best tokens of a warp in the target's own race, and
 * what no other token of the warp is above. */
#define GUMBEL_SHORT_LIST_TOKENS 4
typedef struct gumbel_short_list {
    gumbel_contender of[GUMBEL_SHORT_LIST_TOKENS]; /* in order */
    float bound;
} gumbel_short_list;

typedef struct gumbel_rule_params {
    gumbel_verification verification;
    gumbel_proposal by;
    float inverse_caps[2];        /* of the target, of the draft; 0: no soft-cap */
    int32_t parts;                /* CTAs a row in this launch */
    int64_t chunk;                /* tokens of each */
    uint64_t tag;                 /* of this launch, as of cuda_params */
    gumbel_summary *masses;       /* [2, n, parts]: of the target's rows, the draft's */
    uint64_t *row_counters;       /* [2, n]: parts that have ended, below the tag */
    uint64_t *counters;           /* [R]: rows, or parts, likewise */
    gumbel_contender *contenders; /* [n, parts] */
    gumbel_short_list *lists;     /* [R, parts, warps of a CTA], where by.dots says so */
} gumbel_rule_params;

#endif
