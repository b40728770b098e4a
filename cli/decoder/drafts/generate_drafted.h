/* SPDX-License-Identifier: Apache-2.0
 *
 * Speculative decoding: what a drafter proposes is fed to the target at once, and
 * gumbel_verify() says how far it is what the target draws. By the coupled rule the texts are those
 * of generate(), byte for byte, whatever is proposed; by the others they have the same law.
 */
#ifndef DECODER_GENERATE_DRAFTED_H
#define DECODER_GENERATE_DRAFTED_H

#include "decoder/drafts/drafter.h"
#include "decoder/generate.h"

/* What the drafts of a call were worth, and where its time went, in seconds. */
typedef struct draft_stats {
    int64_t cycles;
    int64_t proposed[DRAFT_TOKENS_MOST]; /* cycles with a draft at this place */
    int64_t accepted[DRAFT_TOKENS_MOST]; /* in how many of them it or a sibling was accepted */
    int64_t emitted;                     /* tokens */
    double drafting;                     /* making drafts */
    double verifying;                    /* trunk, head and draws of the target */
    double plain;                        /* of a step of the target on one token, measured behind */
    int64_t rows;                        /* that the target was fed in cycles */
} draft_stats;

/* generate_drafted(): write texts as generate() does, one after the other. The callback may see
 * some tokens at once. Rules but the coupled one take neither siblings, nor ranks, nor raw
 * log-probabilities.
 *  device   of host memory
 *  options  as of generate(); a `draw` where draft->verify is, and there alone
 *  stats    filled on success, and with what had passed on an error
 *  returns  as generate(); refused are drafts of another vocabulary. */
int generate_drafted(decoder *d, gumbel_device *device, const generate_options *options,
                     const draft_options *draft, draft_stats *stats, generate_times *times,
                     decoder_error *error);

#endif /* DECODER_GENERATE_DRAFTED_H */
