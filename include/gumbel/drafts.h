/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel: drafts verified, for speculative decoding.
 *
 * A draft model, or a table of n-grams, proposes tokens; the target is fed all of them at once and
 * says how far they are its own. By the usual rule, GUMBEL_RULE_COUPLED, draft and target draw with
 * the same noise g(seed, position, sample, domain, token): the drafter is gumbel_sample() with the
 * target's seed, position, first_sample and domain, or anything else. Then verifying is one draw of
 * all rows and a comparison: what is emitted is always the target's own draw, so a text is a
 * function of the target and the seed, whatever was drafted. No probabilities of the draft are
 * needed, and no [n, V] array is formed. For a draft that is not random it accepts as often as any
 * exact rule can.
 * [docs/maths.md, section 12; Daliri, Musco, Suresh, arXiv 2408.07978]
 *
 * The other rules are exact, too, for drafts that were drawn at random, by noise of their own: the
 * text has the target's law, and changes with what is drafted.
 *
 * Letters, beside those of gumbel.h:
 *   R requests     M nodes that a request has at most     n rows of hidden states or logits
 *
 * What gumbel.h says of memory, strides, CUDA, threads, errors and structs holds here, too.
 */
#ifndef GUMBEL_DRAFTS_H
#define GUMBEL_DRAFTS_H

#include <gumbel/gumbel.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GUMBEL_NODES_MOST 1024 /* nodes of a request, its root included */

/* How drafts are accepted. All rules are exact. */
typedef enum gumbel_rule {
    GUMBEL_RULE_COUPLED = 0,   /* while they are the target's own draws */
    GUMBEL_RULE_REJECTION = 1, /* each with chance min(1, p / q), p the target's and q the draft's
                                * probability of it; behind the first that is not, a token is drawn
                                * by max(p - q, 0) (arXiv 2211.17192, 2302.01318) */
    GUMBEL_RULE_BLOCK = 2,     /* jointly, 4 to 14% more than those (arXiv 2403.10444) */
} gumbel_rule;

/* The domain by which a drafter under GUMBEL_RULE_BLOCK draws token `step` of its draft, from 0 on:
 * the places of a draft that is cut short are drafted again, and must not meet their noise. */
#define GUMBEL_DRAFT_DOMAIN(step) ((uint32_t)GUMBEL_DOMAIN_DRAFT | (uint32_t)(step) << 8)

/* What was drafted. Node 0 of a request, its root, is its last token that is certain, the others
 * are drafts; row j of the request, of hidden states or logits, is what follows node j. On CUDA all
 * arrays are in device memory, so that a graph, replayed, verifies any drafts of its shape. */
typedef struct gumbel_draft {
    size_t struct_size;
    int64_t requests;        /* R, 1 or more where there are rows */
    int32_t max_nodes;       /* M, 1..GUMBEL_NODES_MOST */
    gumbel_rule rule;        /* not COUPLED: chains alone */
    const int32_t *tokens;   /* [n] the token of each node. A root's is not read. What is outside
                             * [0, vocab_size) is no draft, and nothing behind it is accepted */
    const int32_t *offsets;  /* [R + 1] request r has rows offsets[r] .. offsets[r + 1] - 1, M at
                             * most; never falling, in 0..n. NULL: r * M .. r * M + M - 1 */
    const int32_t *nodes;    /* [R] how many of its rows a request uses, from the first on; with 0
                             * it emits nothing. NULL: all */
    const int32_t *parents;  /* [n] of node j > 0 of a request, a node in 0..j - 1; not read of
                             * roots. NULL: j - 1, chains. Of equal siblings the first counts */
    const int32_t *limit;    /* [R] tokens to emit at most, >= 0; NULL: M */
    gumbel_token_lists stop; /* a row of lists a request, without values: it ends with these */

    /* REJECTION, BLOCK: the call that drew the drafts, from which q is computed: row j of a request
     * drew node j + 1, and the row of its last node may hold anything. V is the target's. Where
     * both ways in are NULL, the drafts were not drawn at random, and the rule is COUPLED. */
    const gumbel_head *head;         /* hidden [n, D of the draft]; or */
    const gumbel_logits *logits;     /* [n, V]; one of the two */
    const gumbel_sampling *sampling; /* parameters of R requests as the target's, in the same slots;
                                      * penalties count as the target's do. `domain` is that of the
                                      * draws: neither the target's nor one that a rule uses,
                                      * GUMBEL_DOMAIN_ACCEPT and GUMBEL_DOMAIN_RESIDUAL.
                                      * NULL: T = 1 and nothing else, domain GUMBEL_DOMAIN_DRAFT */
    /* [n] Outputs `lse` and `logprobs` of that call, of row j as it drew node j + 1; both, or both
     * NULL: they are computed again. With them CUDA multiplies the draft's head by few tokens alone
     * where no edits or cuts are asked for, and reads few of the draft's logits. A number that is
     * not that call's makes another law; NaN: q is not known. A CPU has no use for them. */
    const float *lse;
    const float *logprobs;
} gumbel_draft;

/* Why a request has ended. */
typedef enum gumbel_finish_reason {
    GUMBEL_FINISHED_NOT = 0,
    GUMBEL_FINISHED_STOP = 1,  /* it emitted a token of `stop` */
    GUMBEL_FINISHED_LIMIT = 2, /* it emitted as many as `limit` */
} gumbel_finish_reason;

/* Where results go. Every pointer but `tokens` and `emitted` may be NULL. Requests that are not
 * live, or have no nodes, emit nothing, with GUMBEL_ROW_UNUSED. */
typedef struct gumbel_verified {
    size_t struct_size;
    int32_t *tokens;     /* [R, M] what is emitted; -1 behind the last */
    int32_t *emitted;    /* [R] how many: accepted + 1, or accepted where the row behind the last
                            * accepted draft has no token */
    int32_t *accepted;   /* [R] drafts among them */
    int32_t *path;       /* [R, M] rows of the root and the accepted drafts, whose keys and values
                            * stay in a cache; -1 behind the last */
    int32_t *last_row;   /* [R] the last of these: its hidden state feeds the next draft */
    uint64_t *position;  /* [R, or slots] position + emitted, for the next call; may be the
                            * sampling's `position` itself, whose stride is then 0 or 1 */
    int32_t *finished;   /* [R] a gumbel_finish_reason */
    int32_t *status;     /* [R] the gumbel_row_status of the last row of the path; on CUDA
                            * GUMBEL_ROW_DRAFT where offsets, nodes or parents cannot be */
    float *logprobs;     /* [R, M] of the emitted tokens, by the target; NaN behind the last */
    float *scores;       /* [R, M] likewise; NaN of drafts that a rule but COUPLED accepted */
    uint64_t *histogram; /* [M] place `accepted` of each request that has nodes grows by 1 */
    const gumbel_output *rows; /* what gumbel_sample() says of each of the n rows; unused ones are
                                * GUMBEL_ROW_UNUSED. Its logprobs_of is that of logprobs, too */
} gumbel_verified;

/* gumbel_verify(): draw from n rows of hidden states, and accept drafts.
 *  head       hidden [n, D], a row a node; the whole vocabulary
 *  sampling   row parameters, slots, live_rows, lists of tokens and histories are those of R
 *             requests; a mask is of n rows. Of one draw (num_samples 1), with neither noise nor
 *             given tokens. `position` is that of the token behind the root: node j is drawn at
 *             position + its depth. Penalties count a request's history, to which its root
 *             belongs, and the drafts from the root to the node, as if these had been emitted.
 *  workspace  gumbel_verify_workspace_size() bytes, aligned as in gumbel_sample()
 *  rows       one that cannot be drawn ends its request: its node is not accepted, so that it is
 *             the next call's root. Rows that accepted drafts do not lead to may hold anything.
 *  repeats    by COUPLED, tokens, scores and log-probabilities have the bits that gumbel_sample()
 *             gives them, step by step, whatever was drafted. By the others, what is emitted is a
 *             function of all arguments.
 *  cost       REJECTION, on a CPU, scores 1 + num_best tokens a row, 17 or those of `rows`, in a
 *             second pass over W and one over the draft's; of each 10,000 rejected drafts some read
 *             both again. BLOCK, from logits alone, reads the rows of each request's drafts twice.
 *             On CUDA each head is multiplied once, and its logits stored; rows are read for their
 *             log-normaliser, for BLOCK once more, and of each request one is drawn from. So it
 *             pays to hand in the draft's `lse` and `logprobs`, or its logits, where its draws have
 *             left them. `rows` costs a draw of all rows beside.
 *  graphs     may be captured: replays read drafts and row parameters anew.
 *  threads    re-entrant.
 *  returns    as gumbel_sample(); GUMBEL_ERROR_UNSUPPORTED where a rule is not to be had.
 *                                                                                      since 0.2 */
GUMBEL_CALL gumbel_verify(gumbel_device *device, void *stream, const gumbel_head *head,
                          const gumbel_sampling *sampling, const gumbel_draft *draft,
                          const gumbel_verified *verified, void *workspace, size_t workspace_bytes,
                          gumbel_error *error);

/* gumbel_verify_logits(): the same from logits [n, V]. since 0.2 */
GUMBEL_CALL gumbel_verify_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                 const gumbel_sampling *sampling, const gumbel_draft *draft,
                                 const gumbel_verified *verified, void *workspace,
                                 size_t workspace_bytes, gumbel_error *error);

/* gumbel_verify_workspace_size(): bytes of workspace that a call with these arguments takes: those
 *  of the draw, some 32 n, and 4 n (M - 1) more where there are penalties. By a rule but COUPLED
 *  what scoring both models' rows takes, some 350 n, and 8 V; on CUDA 4 n V for each model that
 *  has a head that is multiplied, or whose logits are edited or cut.
 *  head, logits  one of the two, the other NULL; data pointers are not followed
 *  returns       GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED.           since 0.2 */
GUMBEL_CALL gumbel_verify_workspace_size(const gumbel_device *device, const gumbel_head *head,
                                         const gumbel_logits *logits,
                                         const gumbel_sampling *sampling, const gumbel_draft *draft,
                                         const gumbel_verified *verified, size_t *bytes,
                                         gumbel_error *error);

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_DRAFTS_H */
