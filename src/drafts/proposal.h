/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts that were drawn at random, and the rules that accept them by both models' probabilities
 * (docs/maths.md, section 12).
 *
 * Both models' rows are scored as given tokens are: the drafted token, and where memory is the
 * host's the target's best scores. A token of max(p - q, 0) has a score by a race that is at most
 * its score by the target's, so that the best of a few settles most rejections; else both rows are
 * read whole. A GPU cannot ask for them then: there all rows are made whole ahead.
 */
#ifndef GUMBEL_DRAFTS_PROPOSAL_H
#define GUMBEL_DRAFTS_PROPOSAL_H

#include "core/workspace.h"
#include "drafts/draft_walk.h"

/* Tokens of a row that are scored at once where there are no logits to read it from. */
#define GUMBEL_PROPOSAL_CHUNK 4096

struct gumbel_proposal {
    gumbel_problem target, draft; /* of n rows each; `draft` is what drew the drafts */
    int32_t listed;               /* K best scores of the target's draw: 0 for BLOCK, on a GPU */
    int32_t *slot;                /* [n] as gumbel_draft_rows.slot: of rows that drew a draft */
    int32_t *ids;                 /* [n, 1 + K] the drafted token or -1, and the best scores' */
    float *target_logprobs, *draft_logprobs; /* [n, 1 + K] of these */
    float *target_lse, *draft_lse;           /* [n] */
    float *target_rows, *draft_rows;         /* z of one row, V; on a GPU [n] at row_stride */
    int64_t row_stride;
    int32_t *tokens; /* what draws of given tokens write; nobody reads it */
    int32_t *chunk;  /* [GUMBEL_PROPOSAL_CHUNK] ids; NULL on a GPU */
    void *workspace; /* of each draw */
};

/* A verification by a rule but COUPLED, as a kernel is handed it. */
typedef struct gumbel_weighing {
    gumbel_verification verification;
    gumbel_proposal by;
} gumbel_weighing;

/* Lay out what a proposal takes, and fill in its problems. `by->draft` has tensors and parameters,
 * `problem` is the target's draw of a verification that is laid out. Rows that are `read` are made
 * one at a time. */
void gumbel_proposal_carve(gumbel_proposal *by, gumbel_cursor *cursor,
                           const gumbel_problem *problem, const gumbel_verification *verification,
                           int reads);

/* What row b drew as a draft, and is scored: its token, or -1. */
GUMBEL_INLINE void gumbel_proposal_choose(const gumbel_proposal *by, const gumbel_verification *v,
                                          int64_t b)
{
    int32_t drafted = gumbel_draft_behind(v, b);
    by->ids[b * (1 + by->listed)] = drafted;
    by->slot[b] = drafted >= 0 ? v->of_row.slot[b] : GUMBEL_SLOT_UNUSED;
}

/* The problem of a problem's n rows with `count` given tokens each; of its rows as they are. */
gumbel_problem gumbel_proposal_scored(const gumbel_problem *problem, int32_t count);
gumbel_problem gumbel_proposal_whole(const gumbel_problem *problem);

/* Score both models' rows: behind the target's draw where its best are scored, too. */
gumbel_status gumbel_proposal_score(const gumbel_proposal *by, gumbel_device *device,
                                    const gumbel_verification *verification, gumbel_error *error);

/* Queue the same on a GPU, for ids that were chosen, and make all rows whole. */
gumbel_status gumbel_proposal_queue(const gumbel_proposal *by, gumbel_device *device,
                                    gumbel_error *error);

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
