/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel: verification of drafts, for speculative decoding.
 *
 * A draft model, or an n-gram table, proposes tokens. The target model computes hidden states or
 * logits for all of them at once, and gumbel_verify() decides how many are accepted.
 *
 * GUMBEL_RULE_COUPLED, the default, is shared-noise acceptance: draft and target draw with the same
 * noise g(seed, position, sample, domain, token). The drafter is gumbel_sample() with the target's
 * seed, position, first_sample and domain, or any other source of tokens; a draft model whose head
 * covers a subset of the vocabulary also requires gumbel_sampling's token_ids. Verification is one
 * draw of all rows and a comparison. The emitted tokens are always the target's own draws, so a
 * text depends only on the target and the seed, whatever was drafted. The rule requires no
 * probabilities of the draft, and forms no [n, V] array. For a draft that is not random, no exact
 * rule accepts more often. [docs/maths.md, section 12; Daliri, Musco, Suresh, arXiv 2408.07978]
 *
 * The other rules are exact, too, and are for drafts that were drawn with independent noise: the
 * text has the target's distribution, but depends on what is drafted.
 *
 * Example: verify two drafts of one request, which are rows 1 and 2 of the hidden states [3, D].
 *
 *     int32_t nodes[3] = {0, draft_0, draft_1}; // node 0 is the root, whose token is not read
 *     int32_t tokens[3], emitted;
 *     gumbel_draft draft = {.struct_size = sizeof draft, .tokens = nodes};
 *     draft.requests = 1;
 *     draft.max_nodes = 3;
 *     gumbel_verified to = {.struct_size = sizeof to, .tokens = tokens, .emitted = &emitted};
 *     check(gumbel_verify_workspace_size(device, &head, NULL, &how, &draft, &to, &bytes, &error));
 *     void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
 *     check(gumbel_verify(device, NULL, &head, &how, &draft, &to, workspace, bytes, &error));
 *     position += (uint64_t)emitted; // tokens[0] to tokens[emitted - 1] are the new text
 *
 * Letters, in addition to those of gumbel.h:
 *   R requests     M largest number of nodes of a request     n rows of hidden states or logits
 *
 * The sections of gumbel.h on memory, streams, threads, errors and structs apply here, too.
 */
#ifndef GUMBEL_DRAFTS_H
#define GUMBEL_DRAFTS_H

#include <gumbel/gumbel.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GUMBEL_NODES_MAX 1024 /* largest number of nodes of a request, its root included */

/* The rule by which drafts are accepted. All rules are exact. p and q are the target's and the
 * draft's probability of a drafted token. */
typedef enum gumbel_rule {
    GUMBEL_RULE_COUPLED = 0, /* drafts are accepted while they equal the target's own draws */
#ifdef GUMBEL_UNSTABLE
    GUMBEL_RULE_REJECTION = 1, /* each draft is accepted with probability min(1, p / q); in place of
                                * the first rejected draft a token is drawn from max(p - q, 0)
                                * (arXiv 2211.17192, 2302.01318) */
    GUMBEL_RULE_BLOCK = 2,     /* drafts are accepted jointly; 4 to 14% more are accepted than by
                                * REJECTION (arXiv 2403.10444) */
#endif
} gumbel_rule;

/* The domain with which a drafter under GUMBEL_RULE_BLOCK draws token `step` of its draft, from 0
 * on. Positions after a rejected draft are drafted again; each step has a domain of its own, so
 * that these draws do not reuse noise. */
#define GUMBEL_DRAFT_DOMAIN(step) ((uint32_t)GUMBEL_DOMAIN_DRAFT | (uint32_t)(step) << 8)

/* Drafts. Node 0 of a request, the root, is its last accepted token; the other nodes are drafts.
 * Row j of the request's hidden states or logits gives the distribution of the token after node j.
 * On CUDA all arrays are in device memory, so that a replayed graph verifies any drafts of its
 * shape. */
typedef struct gumbel_draft {
    size_t struct_size;
    int64_t requests;        /* R; >= 1 if there are rows */
    int32_t max_nodes;       /* M, 1..GUMBEL_NODES_MAX */
    gumbel_rule rule;        /* rules other than COUPLED support only chains (`parents` NULL) */
    const int32_t *tokens;   /* [n] the token of each node; not read for roots. A token outside
                              * [0, vocab_size) and all nodes after it are never accepted */
    const int32_t *offsets;  /* [R + 1], non-decreasing, in 0..n; request r has rows offsets[r] ..
                              * offsets[r + 1] - 1, at most M. NULL: r * M .. r * M + M - 1 */
    const int32_t *nodes;    /* [R] how many of its rows a request uses, from the first on; a
                              * request with 0 emits nothing. NULL: all */
    const int32_t *parents;  /* [n] the parent of node j > 0 of a request, a node in 0..j - 1; not
                              * read for roots. NULL: j - 1, a chain. Of siblings with equal tokens
                              * the first is used */
    const int32_t *limit;    /* [R] the most tokens to emit, >= 0. NULL: no limit. A call emits at
                              * most M tokens a request in any case */
    gumbel_token_lists stop; /* stop tokens: one list a request, without values */

    /* REJECTION and BLOCK only: the call that drew the drafts, from which q is computed. Row j of a
     * request drew node j + 1; the row of its last node may hold anything. V is the target's. If
     * `head` and `logits` are both NULL, the drafts are not random, and the rule is COUPLED. */
    const gumbel_head *head;         /* hidden [n, D of the draft]; or */
    const gumbel_logits *logits;     /* [n, V]; at most one of the two */
    const gumbel_sampling *sampling; /* parameters of R requests, in the target's slots; penalties
                                      * count as the target's do. `domain` is the domain of the
                                      * draft's draws; it must differ from the target's domain, from
                                      * GUMBEL_DOMAIN_ACCEPT and from GUMBEL_DOMAIN_RESIDUAL. NULL:
                                      * T = 1, GUMBEL_DOMAIN_DRAFT, and defaults */
    /* [n] Optional: the outputs `lse` and `logprobs` of that call. Element j belongs to row j,
     * which drew node j + 1. Set both, or neither; NULL means that they are computed again. With
     * both, and without transforms or truncation, CUDA computes only a few tokens of the draft's
     * head, or reads only a few of its logits. A value that is not that call's changes the
     * distribution of the text. NaN means that q is not known. A CPU does not read them. */
    const float *lse;
    const float *logprobs;

    /* COUPLED only: [n] the position of each row's draw, for example those of
     * gumbel_watermark_nodes() (watermark.h). NULL: the request's position + the node's depth.
     * since 0.3 */
    const uint64_t *node_position;
} gumbel_draft;

/* Why a request ended. */
typedef enum gumbel_finish_reason {
    GUMBEL_FINISHED_NOT = 0,
    GUMBEL_FINISHED_STOP = 1,  /* it emitted a token of `stop` */
    GUMBEL_FINISHED_LIMIT = 2, /* it emitted `limit` tokens */
} gumbel_finish_reason;

/* Outputs of a verification. Every pointer but `tokens` and `emitted` may be NULL. Requests that
 * are not live, or have no nodes, emit nothing and have GUMBEL_ROW_UNUSED. */
typedef struct gumbel_verified {
    size_t struct_size;
    int32_t *tokens;     /* [R, M] the emitted tokens; -1 after the last */
    int32_t *emitted;    /* [R] number of emitted tokens: accepted + 1, or accepted if the row after
                          * the last accepted draft has no token */
    int32_t *accepted;   /* [R] number of accepted drafts among them */
    int32_t *path;       /* [R, M] rows of the root and of the accepted drafts, whose keys and
                          * values stay in the cache; -1 after the last */
    int32_t *last_row;   /* [R] the last row of `path`: its hidden state feeds the next draft */
    uint64_t *position;  /* [R or slots] position + emitted, for the next call; may be the
                          * sampling's `position` itself, whose stride must then be 0 or 1. Slots
                          * without a live request are not written */
    int32_t *finished;   /* [R] a gumbel_finish_reason */
    int32_t *status;     /* [R] the gumbel_row_status of the row at which the request stopped:
                          * GUMBEL_ROW_OK, also with a limit of 0, or why no token could be drawn.
                          * On CUDA GUMBEL_ROW_DRAFT if offsets, nodes or parents are not valid */
    float *logprobs;     /* [R, M] the target's log-probabilities of `tokens`; NaN after the last */
    float *scores;       /* [R, M] scores of `tokens`; NaN after the last, and for drafts that a
                          * rule other than COUPLED accepted */
    uint64_t *histogram; /* [M] element `accepted` grows by 1 for each request with nodes */
    const gumbel_output *rows; /* outputs of gumbel_sample() for each of the n rows; unused rows
                                * have GUMBEL_ROW_UNUSED. rows->logprobs_of applies to `logprobs`,
                                * too */
} gumbel_verified;

/* gumbel_verify(): draw a token for each of n rows of hidden states, and accept drafts.
 *  head       hidden [n, D], one row a node; the whole vocabulary
 *  sampling   Row parameters, slots, live_rows, token lists and histories are those of R requests;
 *             a mask has n rows. num_samples is 1; noise and given tokens are not supported.
 *             `position` is the position of the token after the root: node j is drawn at position +
 *             its depth, unless draft->node_position has another. Penalties count the request's
 *             history, which must include the root, and the drafts from the root to the node, as
 *             if they had been emitted.
 *  workspace  gumbel_verify_workspace_size() bytes, aligned as in gumbel_sample()
 *  rows       A row without a token ends its request: its node is not accepted, and becomes the
 *             root of the next call. Rows that accepted drafts do not lead to may hold anything.
 *  repeats    With COUPLED, tokens, scores and log-probabilities have the bits of gumbel_sample(),
 *             step by step, whatever was drafted. With the other rules, the emitted tokens are a
 *             function of all arguments.
 *  REJECTION  On a CPU a second pass over W and one over the draft's weights score
 *             1 + rows->num_best tokens a row, 17 without num_best. A few of each 10,000 rejected
 *             drafts read both again.
 *  BLOCK      From logits only. The rows of each request's drafts are read twice.
 *  CUDA       REJECTION and BLOCK multiply each head once and store its logits. Rows are read for
 *             their log-normaliser (for BLOCK once more), and one row of each request is drawn
 *             from. Pass the draft's `lse` and `logprobs`, or its logits, if the engine still has
 *             them. `rows` costs a draw of all rows more.
 *  graphs     The call may be captured; replays read drafts and row parameters anew.
 *  threads    re-entrant
 *  returns    as gumbel_sample(); GUMBEL_ERROR_UNSUPPORTED if the rule does not support the call.
 *                                                                                      since 0.2 */
GUMBEL_CALL gumbel_verify(gumbel_device *device, void *stream, const gumbel_head *head,
                          const gumbel_sampling *sampling, const gumbel_draft *draft,
                          const gumbel_verified *verified, void *workspace, size_t workspace_bytes,
                          gumbel_error *error);

/* gumbel_verify_logits(): as gumbel_verify(), from logits [n, V]. since 0.2 */
GUMBEL_CALL gumbel_verify_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                 const gumbel_sampling *sampling, const gumbel_draft *draft,
                                 const gumbel_verified *verified, void *workspace,
                                 size_t workspace_bytes, gumbel_error *error);

/* gumbel_verify_workspace_size(): the workspace, in bytes, of a call with these arguments.
 *  bytes         the draw's, about 32 n more, and 4 n (M - 1) more with penalties. Rules other than
 *                COUPLED score rows of both models: about 350 n + 8 V more. On CUDA these rules
 *                also take 4 n V for each model whose head is multiplied, or whose logits are
 *                transformed or truncated.
 *  head, logits  one of the two is the input, the other is NULL; data pointers are not read
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
