/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts that were sampled from a draft model, and the rules REJECTION and BLOCK, which accept them
 * by the probabilities p of the target model and q of the draft model (docs/maths.md, section 12).
 *
 * On the host, both models' rows are scored as given tokens are: the drafted token and the target's
 * best scores. A token's score under max(p - q, 0) is at most its score under the target, so a few
 * best scores determine most residual draws; otherwise both rows are read whole. On a GPU the
 * logits of both models are in memory, the caller's or stored by a product, and kernels read them
 * (rule_params.h).
 */
#ifndef GUMBEL_DRAFTS_PROPOSAL_H
#define GUMBEL_DRAFTS_PROPOSAL_H

#include "core/workspace.h"
#include "drafts/draft_walk.h"

/* max(r p - q, 0) is summed in integer units of 2^-52, so the order of addition does not matter. */
#define GUMBEL_RESIDUAL_UNITS 0x1p52f

/* The decision of a rule about a node. */
typedef enum gumbel_verdict {
    GUMBEL_VERDICT_NONE,     /* undecided: no walk reaches the node */
    GUMBEL_VERDICT_DRAW,     /* emit the target's draw, and accept a draft that equals it */
    GUMBEL_VERDICT_DRAFT,    /* accept the draft */
    GUMBEL_VERDICT_RESIDUAL, /* emit a draw from max(rest p - q, 0), and accept no draft */
} gumbel_verdict;

/* The values of a node that a rule compares, with the draft after it. */
typedef struct gumbel_rule_node {
    float target, draft; /* log-probabilities of the draft under both models */
    float coin;          /* random variate of the decision, standard exponential */
    float rest;      /* factor r of p in the residual; of BLOCK first the running min(1, r p / q) */
    int32_t drafted; /* -1: none */
    int32_t status;  /* of the target's row */
    int32_t by_ratio; /* 1: the ratio p / q decides; 0: the coupled rule does */
    int32_t verdict;  /* gumbel_verdict */
} gumbel_rule_node;

/* The residual draws of a request, on a GPU. */
typedef struct gumbel_residual_nodes {
    int32_t first, end; /* range of nodes that may be drawn; end < 0: undecided */
    int32_t drafts;     /* that BLOCK compares; the rows after them, except the last, have sums */
} gumbel_residual_nodes;

/* Tokens scored in one call to read a row of a head. */
#define GUMBEL_PROPOSAL_CHUNK 4096

/* The logits of a model's n rows on a GPU. */
typedef struct gumbel_logit_rows {
    gumbel_tensor logits; /* [n, V] */
    int processed;        /* the values are z, not l */
} gumbel_logit_rows;

struct gumbel_proposal {
    gumbel_problem target, draft;            /* of n rows each; `draft` drew the drafts */
    float *target_logprobs, *draft_logprobs; /* [n, 1 + K] of drafted tokens, and of best scores */
    float *target_lse, *draft_lse;           /* [n] */
    gumbel_rule_node *rule_nodes;            /* [n] */
    uint64_t *sums; /* [n] of max(r p - q, 0), in GUMBEL_RESIDUAL_UNITS; BLOCK only */
    float *target_rows, *draft_rows; /* z of one row, [V]; on a GPU [n, V] at row_stride, or NULL to
                                      * read the caller's logits */
    int64_t row_stride;
    void *workspace; /* of each draw */
    /* On the host. */
    int32_t num_best; /* K best scores of the target's draw: 0 for BLOCK, on a GPU */
    int32_t *slot;    /* [n] as gumbel_draft_rows.slot, for rows with a draft after them */
    int32_t *ids;     /* [n, 1 + K] the drafted token or -1, and the best scores' */
    int32_t *tokens;  /* output of given tokens; not read */
    int32_t *chunk;   /* [GUMBEL_PROPOSAL_CHUNK] ids */
    /* On a GPU. */
    gumbel_logit_rows target_logits, draft_logits;
    int drawn;    /* the target's draw has run and set its status */
    int supplied; /* the caller supplies the draft's lse and logprobs */
    int dots;     /* supplied, and q of few tokens is computed by dot products with the head */
    gumbel_residual_nodes *residual_nodes; /* [R], written when verdicts are determined */
};

/* Carves the arrays of a proposal and completes its problems. proposal->draft already has its
 * tensors and parameters; `problem` is the target's draw of a verification whose arrays are carved.
 * `on_host`: the rules run on the host. */
void gumbel_proposal_carve(gumbel_proposal *proposal, gumbel_cursor *cursor,
                           const gumbel_problem *problem, const gumbel_verification *verification,
                           int on_host);

/* Return a problem with the same rows that scores `count` given tokens per row; that processes
 * whole rows; that computes the product alone; or that reads stored logits instead of the head. */
gumbel_problem gumbel_proposal_scored(const gumbel_problem *problem, int32_t count);
gumbel_problem gumbel_proposal_processed(const gumbel_problem *problem);
gumbel_problem gumbel_proposal_product(const gumbel_problem *problem);
gumbel_problem gumbel_proposal_stored(const gumbel_problem *problem, float *rows, int64_t stride);

/* Elements from one stored row to the next: V rounded up to 16 bytes of float32. */
static inline int64_t gumbel_proposal_stride(const gumbel_problem *problem)
{
    return (problem->vocab + 3) / 4 * 4;
}

/* ----------------------------------------------------------------------------- on the host ---- */

/* Scores both models' rows, after the target's draw. */
gumbel_status gumbel_proposal_score(const gumbel_proposal *proposal, gumbel_device *device,
                                    const gumbel_verification *verification, gumbel_error *error);

/* Reads z of row b of a model, -inf for tokens that cannot be drawn. */
gumbel_status gumbel_proposal_read(const gumbel_proposal *proposal, gumbel_device *device,
                                   const gumbel_problem *problem, int64_t b, float *z,
                                   gumbel_error *error);

/* Applies the rule to request r, a chain whose rows begin at `first`: sets the token that each node
 * emits. */
gumbel_status gumbel_proposal_apply_rule(const gumbel_proposal *proposal, gumbel_device *device,
                                         const gumbel_verification *verification, int64_t r,
                                         int64_t first, gumbel_node *nodes, int32_t count,
                                         gumbel_error *error);

/* ------------------------------------------------------------------------------ on a GPU ---- */

/* Queues the logits of both models, each head multiplied once, and processes them. `draw` is the
 * target's draw; it reads the stored logits, and is queued if proposal->drawn is set. */
gumbel_status gumbel_proposal_queue(const gumbel_proposal *proposal, gumbel_device *device,
                                    const gumbel_problem *draw,
                                    const gumbel_verification *verification, gumbel_error *error);

#endif
