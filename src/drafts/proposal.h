/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts that were drawn at random, and the rules that accept them by both models' probabilities
 * (docs/maths.md, section 12). Where memory is the host's.
 *
 * Both models' rows are scored as given tokens are: the drafted token, and the target's best
 * scores. A token of max(p - q, 0) has a score by a race that is at most its score by the target's,
 * so that the best of a few settles most rejections; else both rows are read whole.
 */
#ifndef GUMBEL_DRAFTS_PROPOSAL_H
#define GUMBEL_DRAFTS_PROPOSAL_H

#include "core/workspace.h"
#include "drafts/draft_walk.h"

/* Tokens of a row that are scored at once where there are no logits to read it from. */
#define GUMBEL_PROPOSAL_CHUNK 4096

typedef struct gumbel_proposal {
    gumbel_problem target, draft; /* of n rows each; `draft` is what drew the drafts */
    int32_t listed;               /* K best scores of the target's draw: 0 for BLOCK */
    int32_t *slot;                /* [n] as gumbel_draft_rows.slot: of rows that drew a draft */
    int32_t *ids;                 /* [n, 1 + K] the drafted token or -1, and the best scores' */
    float *target_logprobs, *draft_logprobs; /* [n, 1 + K] of these */
    float *target_lse, *draft_lse;           /* [n] */
    float *target_row, *draft_row;           /* [V] z of one row */
    int32_t *tokens;                         /* what draws of given tokens write; nobody reads it */
    int32_t *chunk;                          /* [GUMBEL_PROPOSAL_CHUNK] ids */
    void *workspace;                         /* of each draw */
} gumbel_proposal;

/* Lay out what a proposal takes, and fill in its problems. `by->draft` has tensors and parameters,
 * `problem` is the target's draw of a verification that is laid out. */
void gumbel_proposal_carve(gumbel_proposal *by, gumbel_cursor *cursor,
                           const gumbel_problem *problem, const gumbel_verification *verification);

/* The problem of a problem's n rows with `count` given tokens each; of its rows as they are. */
gumbel_problem gumbel_proposal_scored(const gumbel_problem *problem, int32_t count);
gumbel_problem gumbel_proposal_whole(const gumbel_problem *problem);

/* Behind the target's draw: score both models' rows, and have each draw be what the rule emits. */
gumbel_status gumbel_proposal_score(const gumbel_proposal *by, gumbel_device *device,
                                    const gumbel_verification *verification, gumbel_error *error);

/* Read row b of a model whole: its z, -inf for what cannot be drawn. */
gumbel_status gumbel_proposal_read(const gumbel_proposal *by, gumbel_device *device,
                                   const gumbel_problem *problem, int64_t b, float *z,
                                   gumbel_error *error);

/* Decide what is emitted behind the nodes of request r, a chain whose rows begin at `first`. */
gumbel_status gumbel_proposal_decide(const gumbel_proposal *by, gumbel_device *device,
                                     const gumbel_verification *verification, int64_t r,
                                     int64_t first, gumbel_node *nodes, int32_t count,
                                     gumbel_error *error);

#endif
