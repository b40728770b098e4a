/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts that were drawn at random, and the rules that accept them by both models' probabilities
 * (docs/maths.md, section 12).
 *
 * Where memory is the host's, both models' rows are scored as given tokens are: the drafted token,
 * and the target's best scores. A token of max(p - q, 0) has a score by a race that is at most its
 * score by the target's, so that the best of a few settles most rejections; else both rows are read
 * whole. A GPU cannot ask for them then: there rows lie in memory, as a caller has them or as a
 * product has stored them, and all is read from these (rule_params.h).
 */
#ifndef GUMBEL_DRAFTS_PROPOSAL_H
#define GUMBEL_DRAFTS_PROPOSAL_H

#include "core/workspace.h"
#include "drafts/draft_walk.h"

/* max(r p - q, 0) is summed as whole numbers of 2^-52, so that all orders of adding agree. */
#define GUMBEL_RESIDUAL_UNITS 0x1p52f

/* What a rule has decided about a node. */
typedef enum gumbel_verdict {
    GUMBEL_VERDICT_NONE,     /* nothing: no walk comes here */
    GUMBEL_VERDICT_DRAW,     /* the target's draw is emitted, and accepts the draft that it is */
    GUMBEL_VERDICT_DRAFT,    /* the draft is accepted */
    GUMBEL_VERDICT_RESIDUAL, /* a draw by max(rest p - q, 0) is emitted, and accepts none */
} gumbel_verdict;

/* A node as a rule weighs it, with the draft behind it. */
typedef struct gumbel_rule_node {
    float target, draft; /* the draft's log-probabilities by both models */
    float coin;
    float rest;      /* of a residual; of a block until it is judged: r */
    int32_t drafted; /* -1: none */
    int32_t status;  /* of the target's row */
    int32_t weighs;  /* 0: the coupled rule decides */
    int32_t verdict; /* gumbel_verdict */
} gumbel_rule_node;

/* What a request's verdicts leave to be drawn, on a GPU. */
typedef struct gumbel_residual_nodes {
    int32_t first, end; /* nodes that are drawn are among these; end < 0: it is not judged */
    int32_t drafts; /* that a block weighs: the rows behind all but the last of them have sums */
} gumbel_residual_nodes;

/* Tokens of a row that are scored at once where there are no logits to read it from. */
#define GUMBEL_PROPOSAL_CHUNK 4096

/* Where the logits of a model's n rows lie on a GPU. */
typedef struct gumbel_logit_rows {
    gumbel_tensor logits; /* [n, V] */
    int processed;        /* they are z, as a draw sees them */
} gumbel_logit_rows;

struct gumbel_proposal {
    gumbel_problem target, draft;            /* of n rows each; `draft` is what drew the drafts */
    float *target_logprobs, *draft_logprobs; /* [n, 1 + K] of drafted tokens, and of best scores */
    float *target_lse, *draft_lse;           /* [n] */
    gumbel_rule_node *weighed;               /* [n] */
    uint64_t *sums; /* [n] of max(r p - q, 0), in GUMBEL_RESIDUAL_UNITS; NULL but for BLOCK */
    float *target_rows, *draft_rows; /* z of one row, V; on a GPU [n] at row_stride, or NULL where
                                      * the caller's logits serve */
    int64_t row_stride;
    void *workspace; /* of each draw */
    /* Where memory is the host's. */
    int32_t listed;  /* K best scores of the target's draw: 0 for BLOCK, on a GPU */
    int32_t *slot;   /* [n] as gumbel_draft_rows.slot: of rows that drew a draft */
    int32_t *ids;    /* [n, 1 + K] the drafted token or -1, and the best scores' */
    int32_t *tokens; /* what draws of given tokens write; nobody reads it */
    int32_t *chunk;  /* [GUMBEL_PROPOSAL_CHUNK] ids */
    /* On a GPU. */
    gumbel_logit_rows target_logits, draft_logits;
    int drawn; /* the target's draw has run, and left its status */
    int told;  /* the draft's lse and logprobs are the caller's */
    int dots;  /* and its head is multiplied by few tokens, its logits nowhere */
    gumbel_residual_nodes *judged; /* [R] */
};

/* Lay out what a proposal takes, and fill in its problems. `by->draft` has tensors and parameters,
 * `problem` is the target's draw of a verification that is laid out. With `reads`, memory is the
 * host's. */
void gumbel_proposal_carve(gumbel_proposal *by, gumbel_cursor *cursor,
                           const gumbel_problem *problem, const gumbel_verification *verification,
                           int reads);

/* The problem of a problem's n rows with `count` given tokens each; of its rows as they are; of its
 * product alone; and of its logits where these are stored. */
gumbel_problem gumbel_proposal_scored(const gumbel_problem *problem, int32_t count);
gumbel_problem gumbel_proposal_processed(const gumbel_problem *problem);
gumbel_problem gumbel_proposal_product(const gumbel_problem *problem);
gumbel_problem gumbel_proposal_stored(const gumbel_problem *problem, float *rows, int64_t stride);

/* Elements from one stored row to the next, as kernels like it. */
static inline int64_t gumbel_proposal_stride(const gumbel_problem *problem)
{
    return (problem->vocab + 3) / 4 * 4;
}

/* -------------------------------------------------------------- where memory is the host's ---- */

/* Score both models' rows, behind the target's draw. */
gumbel_status gumbel_proposal_score(const gumbel_proposal *by, gumbel_device *device,
                                    const gumbel_verification *verification, gumbel_error *error);

/* Read row b of a model whole: its z, -inf for what cannot be drawn. */
gumbel_status gumbel_proposal_read(const gumbel_proposal *by, gumbel_device *device,
                                   const gumbel_problem *problem, int64_t b, float *z,
                                   gumbel_error *error);

/* Decide what is emitted behind the nodes of request r, a chain whose rows begin at `first`. */
gumbel_status gumbel_proposal_apply_rule(const gumbel_proposal *by, gumbel_device *device,
                                         const gumbel_verification *verification, int64_t r,
                                         int64_t first, gumbel_node *nodes, int32_t count,
                                         gumbel_error *error);

/* ------------------------------------------------------------------------------ on a GPU ---- */

/* Have both models' rows lie in memory, each head multiplied once, and as draws see them. `draw` is
 * the target's draw, which is made from them if by->drawn says so. */
gumbel_status gumbel_proposal_queue(const gumbel_proposal *by, gumbel_device *device,
                                    const gumbel_problem *draw,
                                    const gumbel_verification *verification, gumbel_error *error);

#endif
