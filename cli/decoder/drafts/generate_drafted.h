/* SPDX-License-Identifier: Apache-2.0
 *
 * Speculative decoding: the target is fed all proposed tokens at once, and gumbel_verify() accepts
 * a prefix. By the coupled rule the texts are those of generate(), byte for byte, whatever is
 * proposed; by other rules they have the same distribution.
 */
#ifndef DECODER_GENERATE_DRAFTED_H
#define DECODER_GENERATE_DRAFTED_H

#include "decoder/drafts/drafter.h"
#include "decoder/generate.h"

/* Numbers of proposed and accepted drafts of a call, and its times in seconds. */
typedef struct draft_stats {
    int64_t cycles;
    int64_t proposed[DRAFT_TOKENS_MAX]; /* cycles with a draft at this place */
    int64_t accepted[DRAFT_TOKENS_MAX]; /* cycles in which it or a sibling was accepted */
    int64_t emitted;                    /* tokens */
    double drafting;                    /* proposing drafts */
    double verifying;                   /* trunk, head and draws of the target */
    double plain;                       /* a step of the target on one token, measured at the end */
    int64_t rows;                       /* fed to the target in cycles */
} draft_stats;

/* generate_drafted(): writes texts as generate() does, one after the other. The callback may
 * receive several tokens at once. Siblings, ranks and raw log-probabilities require the coupled
 * rule.
 *  device   of host memory
 *  options  as in generate(); `draw` is set exactly if draft->verify is
 *  stats    filled, also after an error
 *  returns  as generate(); -1 for a draft model with another vocabulary. */
int generate_drafted(decoder *d, gumbel_device *device, const generate_options *options,
                     const draft_options *draft, draft_stats *stats, generate_times *times,
                     decoder_error *error);

#endif /* DECODER_GENERATE_DRAFTED_H */
