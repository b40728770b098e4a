/* SPDX-License-Identifier: Apache-2.0 */
#include "watermark_calls.h"

#include <stdio.h>
#include <string.h>

#define POISON UINT64_C(0x5a5a5a5a5a5a5a5a)

/* Fills the text of a slot, and its ring as gumbel_recent_append() does. */
static void fill_slot(watermark_call *c, int64_t slot, uint64_t *random)
{
    static const uint32_t alphabets[] = {1, 2, 3, 5, 50, 100000};
    const uint32_t tokens = alphabets[random_below(random, 6)];
    const uint32_t longest = random_below(random, 2) ? 20 : WATERMARK_TEXT + 1;
    c->count[slot] = random_below(random, longest);
    for (uint64_t i = 0; i < WATERMARK_TEXT + WATERMARK_DRAFTS; i++)
        c->text[slot][i] = (int32_t)random_below(random, tokens);
    for (uint64_t i = 0; i < c->count[slot]; i++)
        c->ring[slot * c->recent.capacity + (int64_t)(i % (uint64_t)c->recent.capacity)] =
            c->text[slot][i];
    c->text_start[slot] = random_below(random, 3) ? random_below(random, 30) : 0;
    c->own_seed[slot] = random_bits(random);
    c->own_position[slot] = random_bits(random) >> random_below(random, 64);
    c->context[slot] = (int32_t)random_below(random, GUMBEL_CONTEXT_MAX + 1);
    if (random_below(random, 2))
        c->context[slot] %= 4;
}

static void set_slots(watermark_call *c, uint64_t *random)
{
    for (int32_t i = 0; i < WATERMARK_PLACES; i++)
        c->of_row[i] = i;
    for (int32_t i = WATERMARK_PLACES - 1; i > 0; i--) {
        const uint32_t j = random_below(random, (uint32_t)i + 1);
        const int32_t other = c->of_row[j];
        c->of_row[j] = c->of_row[i];
        c->of_row[i] = other;
    }
    c->places = WATERMARK_PLACES;
    c->watermark.slots = (gumbel_slots){c->of_row, WATERMARK_PLACES};
}

/* The slot of row b. */
static int64_t slot_of(const watermark_call *c, int64_t b)
{
    return c->watermark.slots.of_row ? c->of_row[b] : b;
}

/* Sets the drafts of each row to the tokens that follow its text. */
static void set_drafts(watermark_call *c, uint64_t *random)
{
    gumbel_watermark *w = &c->watermark;
    w->num_drafts = 1 + (int32_t)random_below(random, WATERMARK_DRAFTS);
    w->draft_stride = random_below(random, 2) ? w->num_drafts + 1 : 0;
    w->drafts = c->drafts;
    const int64_t stride = w->draft_stride ? w->draft_stride : w->num_drafts;
    for (int64_t b = 0; b < c->batch; b++) {
        const int64_t slot = slot_of(c, b);
        for (int32_t i = 0; i < w->num_drafts; i++)
            c->drafts[b * stride + i] = c->text[slot][c->count[slot] + (uint64_t)i];
    }
}

void watermark_call_poison(watermark_call *c)
{
    memset(c->seed, 0x5a, sizeof c->seed);
    memset(c->position, 0x5a, sizeof c->position);
    memset(c->watermarked, 0x5a, sizeof c->watermarked);
}

void watermark_call_make(watermark_call *c, uint64_t index)
{
    uint64_t random = index * 77;
    memset(c, 0, sizeof *c);
    gumbel_watermark *w = &c->watermark;
    w->struct_size = sizeof *w;
    c->batch = c->places = 1 + random_below(&random, WATERMARK_PLACES);
    if (random_below(&random, 2))
        set_slots(c, &random);
    c->recent = (gumbel_recent){.struct_size = sizeof c->recent,
                                .capacity = 1 + random_below(&random, WATERMARK_CAPACITY),
                                .tokens = c->ring,
                                .count = c->count};
    for (int64_t slot = 0; slot < c->places; slot++)
        fill_slot(c, slot, &random);
    for (int i = 0; i < 3 * WATERMARK_PLACES; i++)
        c->key[i] = random_bits(&random);
    static const int64_t strides[] = {0, 2, 3, GUMBEL_SAME};
    w->key = c->key;
    w->key_stride = strides[random_below(&random, 4)];
    w->context = (gumbel_row_i32){random_below(&random, 6) ? c->context : NULL, 0};
    w->text_start = (gumbel_row_u64){random_below(&random, 2) ? c->text_start : NULL, 0};
    w->seed = (gumbel_row_u64){c->own_seed, random_below(&random, 2) ? GUMBEL_SAME : 0};
    if (random_below(&random, 6) == 0)
        w->seed = (gumbel_row_u64){NULL, 0};
    w->position = (gumbel_row_u64){c->own_position, random_below(&random, 2) ? GUMBEL_SAME : 0};
    if (random_below(&random, 2))
        set_drafts(c, &random);
    if (random_below(&random, 3) == 0) {
        c->live = (int32_t)random_below(&random, (uint32_t)c->batch + 1);
        w->live_rows = &c->live;
    }
    c->draws = (gumbel_watermark_draws){.struct_size = sizeof c->draws,
                                        .seed = c->seed,
                                        .position = c->position,
                                        .watermarked = c->watermarked};
    watermark_call_poison(c);
}

/* The oracle's draw of row b. */
static oracle_draw expect_row(const watermark_call *c, int64_t b)
{
    const gumbel_watermark *w = &c->watermark;
    const int64_t slot = slot_of(c, b);
    const int64_t stride = w->key_stride ? w->key_stride : 2;
    const uint64_t *key = stride == GUMBEL_SAME ? c->key : c->key + slot * stride;
    const uint64_t kept = (uint64_t)c->recent.capacity, total = c->count[slot];
    const uint64_t start = w->text_start.data ? c->text_start[slot] : 0;
    const uint64_t end = total + (uint64_t)w->num_drafts;
    uint64_t begin = total > kept ? total - kept : 0;
    begin = start > begin ? start : begin;
    begin = begin < end ? begin : end;
    uint64_t seed = w->seed.data ? c->own_seed[w->seed.stride == GUMBEL_SAME ? 0 : slot] : 0;
    if (!w->seed.data || w->seed.stride == GUMBEL_SAME)
        seed = gumbel_row_seed(seed, (uint64_t)slot);
    const uint64_t position = c->own_position[w->position.stride == GUMBEL_SAME ? 0 : slot];
    return oracle_watermark(key, w->context.data ? c->context[slot] : GUMBEL_CONTEXT_DEFAULT,
                            c->text[slot] + begin, (int64_t)(end - begin), seed,
                            position + (uint64_t)w->num_drafts);
}

int watermark_call_agrees(const watermark_call *c, int64_t *watermarked, int64_t *repeats)
{
    const int64_t live = c->watermark.live_rows ? c->live : c->batch;
    int used[WATERMARK_PLACES] = {0};
    for (int64_t b = 0; b < c->batch; b++) {
        const int64_t slot = slot_of(c, b);
        const oracle_draw e = b < live ? expect_row(c, b) : (oracle_draw){POISON, POISON, 0};
        const uint64_t length = (uint64_t)(c->watermark.context.data ? c->context[slot] : 4);
        used[slot] = 1;
        if (c->seed[slot] != e.seed || c->position[slot] != e.position ||
            c->watermarked[b] != e.watermarked) {
            printf("row %d, slot %d, h %d: watermarked %d, expected %d\n", (int)b, (int)slot,
                   (int)length, (int)c->watermarked[b], (int)e.watermarked);
            return 0;
        }
        *watermarked += e.watermarked;
        *repeats += b < live && !e.watermarked && length > 0 &&
                    c->count[slot] > c->text_start[slot] + length;
    }
    for (int64_t slot = 0; slot < WATERMARK_PLACES; slot++)
        if (!used[slot] && (c->seed[slot] != POISON || c->position[slot] != POISON)) {
            printf("slot %d is written, and no row has it\n", (int)slot);
            return 0;
        }
    return 1;
}
