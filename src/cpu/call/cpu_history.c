/* SPDX-License-Identifier: Apache-2.0
 *
 * What penalties count, kept from one decode step to the next.
 */
#include "core/fail.h"
#include "core/row.h"
#include "cpu/host/cpu_device.h"

static int64_t slot_of(const gumbel_slots *slots, int64_t b)
{
    return slots->of_row ? slots->of_row[b] : b;
}

static void count_output(const gumbel_history *h, int64_t slot, int64_t token)
{
    GUMBEL_ASSERT(slot >= 0 && token >= 0 && token < h->vocab_size);
    GUMBEL_ASSERT(h->count_bits == 16 || h->count_bits == 32);
    uint32_t count = gumbel_history_count(h, slot, token);
    int64_t at = slot * h->vocab_size + token;
    h->output[slot * gumbel_mask_words_of(h->vocab_size) + (token >> 5)] |= 1u << (token & 31);
    if (count == GUMBEL_COUNT_MOST)
        return;
    if (h->count_bits == 16)
        ((uint16_t *)h->counts)[at] = (uint16_t)(count + 1);
    else
        ((int32_t *)h->counts)[at] = (int32_t)(count + 1);
}

/* Forget all of a slot. */
static void clear(const gumbel_history *h, int64_t slot)
{
    size_t words = (size_t)gumbel_mask_words_of(h->vocab_size), size = (size_t)h->count_bits / 8;
    size_t counts = (size_t)h->vocab_size * size;
    GUMBEL_ASSERT(slot >= 0);
    memset(h->prompt + slot * (int64_t)words, 0, words * sizeof *h->prompt);
    memset(h->output + slot * (int64_t)words, 0, words * sizeof *h->output);
    memset((char *)h->counts + (size_t)slot * counts, 0, counts);
}

gumbel_status cpu_history_start(gumbel_device *device, void *stream, const gumbel_history *h,
                                int64_t batch, const gumbel_slots *slots,
                                const gumbel_token_lists *prompts,
                                const gumbel_token_lists *outputs, gumbel_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    for (int64_t b = 0; b < batch; b++) {
        int64_t slot = slot_of(slots, b);
        GUMBEL_ASSERT(!slots->of_row || slot < slots->count);
        uint32_t *row = h->prompt + slot * gumbel_mask_words_of(h->vocab_size);
        clear(h, slot);
        for (int64_t i = prompts->offsets ? prompts->offsets[b] : 0;
             prompts->offsets && i < prompts->offsets[b + 1]; i++)
            if (prompts->ids[i] < h->vocab_size)
                row[prompts->ids[i] >> 5] |= 1u << (prompts->ids[i] & 31);
        for (int64_t i = outputs->offsets ? outputs->offsets[b] : 0;
             outputs->offsets && i < outputs->offsets[b + 1]; i++)
            if (outputs->ids[i] < h->vocab_size)
                count_output(h, slot, outputs->ids[i]);
    }
    return GUMBEL_OK;
}

gumbel_status cpu_history_update(gumbel_device *device, void *stream, const gumbel_history *h,
                                 int64_t batch, const gumbel_slots *slots, const int32_t *tokens,
                                 int64_t token_stride, const int32_t *counts, gumbel_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    for (int64_t b = 0; b < batch; b++)
        for (int32_t i = 0; i < (counts ? counts[b] : 1); i++) {
            GUMBEL_ASSERT(i < token_stride);
            int32_t token = tokens[b * token_stride + i];
            if (token >= 0 && token < h->vocab_size)
                count_output(h, slot_of(slots, b), token);
        }
    return GUMBEL_OK;
}
