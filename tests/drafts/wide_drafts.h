/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts over rows of thousands of tokens, which kernels cut into parts: logits of all types at odd
 * strides, some of which cannot be drawn from, or heads whose products are exact; and drafts of
 * which some are likely.
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
    void *narrow[4];       /* the heads' data, of a type that holds these exactly */
    float *lse, *logprobs; /* [n] of the draft's draws, once they are told */
} wide_drafts;

/* The index-th, of at most `vocab_most` tokens. By turns of rejection and blocks, these from logits
 * alone. */
wide_drafts *wide_make(int index, int64_t vocab_most);

/* The index-th of those that are always rejected, by heads, and whose residual a list of the best
 * is hard put to settle. Of a few tokens that the target draws, most of them neighbours, the draft
 * draws all but some, so that the best that is left may stand at any place of the list, or just
 * behind it. No other token comes near. */
wide_drafts *wide_make_crowded(int index);

/* The index-th of those that are nearly always rejected, by heads: flat rows, whose logits deviate
 * by 2.5, and a draft that does not see a share of that, `unseen`. */
wide_drafts *wide_make_near(int index, int32_t requests, int64_t vocab, float unseen);

/* Have the draft's call tell its log-normalisers and log-probabilities, as a CPU computes them. */
void report_wide_difference(wide_drafts *generated, gumbel_device *cpu);
void wide_free(wide_drafts *generated);

/* Verify them on a CPU, or by a device whose memory is the host's to read. */
gumbel_status wide_verify(gumbel_device *device, const wide_drafts *req, verified_arrays *into);

#endif
