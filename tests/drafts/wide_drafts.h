/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts over rows of thousands of tokens, which kernels split among CTAs. The rows are logits of
 * all dtypes at unusual strides, some without a valid draw, or products of heads that are exact in
 * float32. Some drafts are likely tokens.
 */
#ifndef TESTS_WIDE_DRAFTS_H
#define TESTS_WIDE_DRAFTS_H

#include "draft_cycles.h"

typedef struct wide_drafts {
    int32_t requests, max_nodes;
    int64_t rows;
    size_t target_bytes, draft_bytes; /* of the logits' data */
    gumbel_logits target, drafted;
    gumbel_sampling sampling, draft_sampling;
    gumbel_draft draft;
    void *target_data, *draft_data;
    float *temperature, *draft_temperature;
    uint64_t *seed, *position;
    uint32_t *first_sample;
    int32_t *tokens, *offsets, *nodes;
    gumbel_head target_head, draft_head; /* with hidden_size > 0 */
    int32_t hidden_size;
    float *hidden, *weight, *bias, *draft_hidden, *draft_weight;
    void *narrow[4];       /* the heads' data in their dtype, which represents them exactly */
    float *lse, *logprobs; /* [n] of the draft's draws, once supplied */
} wide_drafts;

/* The index-th drafts, with at most `vocab_most` tokens. REJECTION and BLOCK alternate; BLOCK uses
 * logits only. */
wide_drafts *wide_make(int index, int64_t vocab_most);

/* Drafts from heads that are always rejected, and whose residual draw is hard to determine from a
 * list of best scores. The target can draw a few tokens, most of them neighbours; the draft can
 * draw most of these. The token of the residual draw may therefore have any rank in the list, or
 * the first rank after it. All other tokens have far lower scores. */
wide_drafts *wide_make_crowded(int index);

/* Drafts from heads that are nearly always rejected: flat rows with a standard deviation of 2.5.
 * The draft's head lacks some dimensions of the hidden state; in these, the target has `unseen`
 * times the deviation of the other dimensions. */
wide_drafts *wide_make_near(int index, int32_t requests, int64_t vocab, float unseen);

/* Supplies the draft's log-normalisers and log-probabilities, computed on a CPU. */
void wide_supply_logprobs(wide_drafts *generated, gumbel_device *cpu);
void wide_free(wide_drafts *generated);

/* Verifies on a CPU, or on a device with host memory. */
gumbel_status wide_verify(gumbel_device *device, const wide_drafts *req, verified_arrays *into);

#endif
