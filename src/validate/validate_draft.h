/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of drafts, and of the arrays to which a verification writes.
 */
#ifndef GUMBEL_VALIDATE_DRAFT_H
#define GUMBEL_VALIDATE_DRAFT_H

#include "validate/validate.h"

#include "gumbel/drafts.h"

/* Copies and checks a draft, for `rows` rows of the target's hidden states or logits. */
gumbel_status gumbel_read_draft(gumbel_draft *into, const gumbel_draft *draft, int64_t rows,
                                gumbel_error *error);

/* Copies and checks output arrays; tokens and emitted must be set if requests > 0. */
gumbel_status gumbel_read_verified(gumbel_verified *into, const gumbel_verified *verified,
                                   int64_t requests, gumbel_error *error);

/* Reads the call that drew the draft, from the draft model's head or logits of `rows` rows, as a
 * problem of R requests with the slots and live rows of `target`. `check_values`: also check the
 * values of row parameters, which are in host memory. */
gumbel_status gumbel_read_proposal(gumbel_problem *problem, const gumbel_draft *draft,
                                   const gumbel_problem *target, int64_t rows, int check_values,
                                   gumbel_error *error);

/* Checks a draft's values for the live requests, in host memory. */
gumbel_status gumbel_check_host_draft(const gumbel_draft *draft, const int32_t *live_rows,
                                      int64_t rows, gumbel_error *error);

#endif
