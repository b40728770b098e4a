/* SPDX-License-Identifier: Apache-2.0
 *
 * Speculative decoding: what a drafter proposes is fed to the target at once, and
 * gumbel_verify() says how far it is what the target draws. The texts are those of generate(), byte
 * for byte, whatever is proposed.
 */
#ifndef DECODER_GENERATE_DRAFTED_H
#define DECODER_GENERATE_DRAFTED_H

#include "decoder/drafts/drafter.h"
#include "decoder/generate.h"

#define DRAFT_TOKENS_MOST 63

/* Zero in any field but `tokens` is its default. */
typedef struct draft_options {
    decoder *model;   /* that proposes, with the target's tokenizer; NULL: n-grams of the text */
    int32_t tokens;   /* of a draft at most, 1..DRAFT_TOKENS_MOST */
    int32_t siblings; /* of each of them at most, 0..DRAFT_SIBLINGS_MOST: the next best of its draw,
                        * as leaves of a tree; not of n-grams */
    float temperature; /* a factor on the temperature of the draft's draws, > 0; 0: 1 */
} draft_options;

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
 * some tokens at once.
 *  device   of host memory
 *  options  as of generate(), without `draw`
 *  stats    filled on success, and with what had passed on an error
 *  returns  as generate(); refused are drafts of another vocabulary. */
int generate_drafted(decoder *d, gumbel_device *device, const generate_options *options,
                     const draft_options *draft, draft_stats *stats, generate_times *times,
                     decoder_error *error);

#endif /* DECODER_GENERATE_DRAFTED_H */
