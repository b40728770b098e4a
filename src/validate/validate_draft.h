/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of drafts and of the arrays that a verification writes.
 */
#ifndef GUMBEL_VALIDATE_DRAFT_H
#define GUMBEL_VALIDATE_DRAFT_H

#include "validate/validate.h"

#include "gumbel/drafts.h"

/* Copies all fields of a draft for `rows` rows of hidden states or logits. */
gumbel_status gumbel_read_draft(gumbel_draft *into, const gumbel_draft *draft, int64_t rows,
                                gumbel_error *error);

/* Copies and checks all fields; tokens and emitted must be set if requests > 0. */
gumbel_status gumbel_read_verified(gumbel_verified *into, const gumbel_verified *verified,
                                   int64_t requests, gumbel_error *error);

/* Reads the draft model's call, which drew the draft from a head or logits of `rows` rows, as a
 * problem of R requests with the slots and live rows of `target`. `reads`: also check values, which
 * are in host memory. */
gumbel_status gumbel_read_proposal(gumbel_problem *problem, const gumbel_draft *draft,
                                   const gumbel_problem *target, int64_t rows, int reads,
                                   gumbel_error *error);

/* Checks the values of live requests, in host memory. */
gumbel_status gumbel_check_host_draft(const gumbel_draft *draft, const int32_t *live_rows,
                                      int64_t rows, gumbel_error *error);

#endif
