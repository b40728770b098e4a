/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of drafts.
 */
#ifndef GUMBEL_VALIDATE_DRAFT_H
#define GUMBEL_VALIDATE_DRAFT_H

#include "validate/validate.h"

#include "gumbel/drafts.h"

/* `draft` in full length, for `rows` rows of hidden states or logits. */
gumbel_status gumbel_read_draft(gumbel_draft *into, const gumbel_draft *draft, int64_t rows,
                                gumbel_error *error);

/* `verified` in full length; refused unless tokens and emitted are there for requests. */
gumbel_status gumbel_read_verified(gumbel_verified *into, const gumbel_verified *verified,
                                   int64_t requests, gumbel_error *error);

/* The call that drew the tokens of a draft, which names a head or logits of `rows` rows: a problem
 * of R requests, which share slots and live rows with the target's. What its parameters point to
 * is followed where the call `reads`. */
gumbel_status gumbel_read_proposal(gumbel_problem *problem, const gumbel_draft *draft,
                                   const gumbel_problem *target, int64_t rows, int reads,
                                   gumbel_error *error);

/* What only the host's eyes can check, of live requests. */
gumbel_status gumbel_check_host_draft(const gumbel_draft *draft, const int32_t *live_rows,
                                      int64_t rows, gumbel_error *error);

#endif
