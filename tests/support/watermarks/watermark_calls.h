/* SPDX-License-Identifier: Apache-2.0
 *
 * Random calls that watermark rows: rings over few tokens, which repeat their contexts, and wrap
 * around; contexts of every length; slots, prompts, drafts, and rows that are not live.
 */
#ifndef TESTS_WATERMARK_CALLS_H
#define TESTS_WATERMARK_CALLS_H

#include "inputs.h"
#include "watermark_oracle.h"

#include <gumbel/watermark.h>

enum {
    WATERMARK_PLACES = 6,
    WATERMARK_CAPACITY = 300,
    WATERMARK_TEXT = 700, /* tokens of a slot, those that its ring has forgotten included */
    WATERMARK_DRAFTS = 9,
};

typedef struct watermark_call {
    gumbel_watermark watermark;
    gumbel_recent recent;
    gumbel_watermark_draws draws;
    int64_t batch, places; /* places: slots, or the batch without slots */
    int32_t text[WATERMARK_PLACES][WATERMARK_TEXT + WATERMARK_DRAFTS];
    int32_t ring[WATERMARK_PLACES * WATERMARK_CAPACITY];
    uint64_t count[WATERMARK_PLACES];
    uint64_t key[3 * WATERMARK_PLACES], text_start[WATERMARK_PLACES];
    uint64_t own_seed[WATERMARK_PLACES], own_position[WATERMARK_PLACES];
    int32_t context[WATERMARK_PLACES], of_row[WATERMARK_PLACES], live;
    int32_t drafts[WATERMARK_PLACES * (WATERMARK_DRAFTS + 2)];
    uint64_t seed[WATERMARK_PLACES], position[WATERMARK_PLACES]; /* results */
    int32_t watermarked[WATERMARK_PLACES];
} watermark_call;

/* Generates call `index`. Its pointers point into it. */
void watermark_call_make(watermark_call *call, uint64_t index);

/* Fills the results with bytes that no call writes. */
void watermark_call_poison(watermark_call *call);

/* Whether the results are the oracle's, and nothing else is written; prints the first difference.
 * *watermarked grows by the rows that the oracle watermarks, *repeats by those whose context
 * repeats. */
int watermark_call_agrees(const watermark_call *call, int64_t *watermarked, int64_t *repeats);

#endif
