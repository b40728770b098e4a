/* SPDX-License-Identifier: Apache-2.0
 *
 * Watermarked texts of a small model, decoded step by step, then verified from random drafts.
 */
#ifndef TESTS_WATERMARK_TEXTS_H
#define TESTS_WATERMARK_TEXTS_H

#include "inputs.h"

#include <gumbel/watermark.h>

enum {
    TEXTS_REQUESTS = 3,
    TEXTS_SLOTS = 5,
    TEXTS_VOCAB = 24,
    TEXTS_PROMPT = 12, /* largest number of tokens */
    TEXTS_LENGTH = 120,
    TEXTS_CAPACITY = TEXTS_PROMPT + TEXTS_LENGTH,
    TEXTS_NODES = 7,
};

/* The requests' parameters, rings and texts. Pointers point into the struct. */
typedef struct watermark_texts {
    gumbel_watermark watermark;
    gumbel_recent recent;
    gumbel_slots slots;
    uint64_t random, key[2 * TEXTS_SLOTS], own_seed[TEXTS_SLOTS], own_position[TEXTS_SLOTS];
    uint64_t text_start[TEXTS_SLOTS], count[TEXTS_SLOTS];
    int32_t context[TEXTS_SLOTS], of_row[TEXTS_REQUESTS];
    int32_t ring[TEXTS_SLOTS * TEXTS_CAPACITY];
    int32_t prompt[TEXTS_REQUESTS], prompts[TEXTS_REQUESTS][TEXTS_PROMPT];
    int32_t text[TEXTS_REQUESTS][TEXTS_LENGTH];        /* decoded step by step */
    int32_t watermarked[TEXTS_REQUESTS][TEXTS_LENGTH]; /* whether each token was watermarked */
} watermark_texts;

/* Generates requests, and decodes their texts on `cpu`. */
void watermark_texts_make(watermark_texts *texts, uint64_t index, gumbel_device *cpu);

/* Totals over verifications. */
typedef struct watermark_texts_counts {
    int64_t cycles, emitted;
} watermark_texts_counts;

/* Verifies the texts from random chains and trees on `device`, with rings on `cpu`. Returns
 * whether the emitted tokens are those of the texts; prints the first difference. */
int watermark_texts_verify(watermark_texts *texts, gumbel_device *cpu, gumbel_device *device,
                           watermark_texts_counts *counts);

#endif
