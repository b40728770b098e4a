/* SPDX-License-Identifier: Apache-2.0
 *
 * The history that penalties count, from one decode step to the next.
 */
#include "cpu/call/cpu_calls.h"

#include "core/fail.h"
#include "core/row.h"
#include "cpu/call/cpu_edits.h"

static int64_t find_slot(const gumbel_slots *slots, int64_t b)
{
    return slots->of_row ? slots->of_row[b] : b;
}

/* Counts a token of the output, if the history has room for it. */
static void count_token(const gumbel_history *h, int64_t slot, int64_t token)
{
    if (token < 0 || token >= h->vocab_size)
        return;
    GUMBEL_ASSERT(slot >= 0);
    GUMBEL_ASSERT(h->count_bits == 16 || h->count_bits == 32);
    uint32_t count = gumbel_history_count(h, slot, token);
    int64_t at = slot * h->vocab_size + token;
    h->output[slot * gumbel_mask_words_of(h->vocab_size) + (token >> 5)] |= 1u << (token & 31);
    if (count == GUMBEL_COUNT_MAX)
        return;
    if (h->count_bits == 16)
        ((uint16_t *)h->counts)[at] = (uint16_t)(count + 1);
    else
        ((int32_t *)h->counts)[at] = (int32_t)(count + 1);
}

static void clear_slot(const gumbel_history *h, int64_t slot)
{
    size_t words = (size_t)gumbel_mask_words_of(h->vocab_size), size = (size_t)h->count_bits / 8;
    size_t counts = (size_t)h->vocab_size * size;
    GUMBEL_ASSERT(slot >= 0);
    memset(h->prompt + slot * (int64_t)words, 0, words * sizeof *h->prompt);
    memset(h->output + slot * (int64_t)words, 0, words * sizeof *h->output);
    memset((char *)h->counts + (size_t)slot * counts, 0, counts);
}

gumbel_status cpu_start_history(gumbel_device *device, void *stream, const gumbel_history *h,
                                int64_t batch, const gumbel_slots *slots,
                                const gumbel_token_lists *prompts,
                                const gumbel_token_lists *outputs, gumbel_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    for (int64_t b = 0; b < batch; b++) {
        int64_t slot = find_slot(slots, b);
        GUMBEL_ASSERT(!slots->of_row || slot < slots->count);
        uint32_t *row = h->prompt + slot * gumbel_mask_words_of(h->vocab_size);
        cpu_list prompt = cpu_get_list(prompts, b), output = cpu_get_list(outputs, b);
        clear_slot(h, slot);
        for (int64_t i = 0; i < prompt.count; i++)
            if (prompt.ids[i] < h->vocab_size)
                row[prompt.ids[i] >> 5] |= 1u << (prompt.ids[i] & 31);
        for (int64_t i = 0; i < output.count; i++)
            count_token(h, slot, output.ids[i]);
    }
    return GUMBEL_OK;
}

gumbel_status cpu_update_history(gumbel_device *device, void *stream, const gumbel_history *h,
                                 int64_t batch, const gumbel_slots *slots, const int32_t *tokens,
                                 int64_t token_stride, const int32_t *counts, gumbel_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    for (int64_t b = 0; b < batch; b++)
        for (int32_t i = 0; i < (counts ? counts[b] : 1); i++) {
            GUMBEL_ASSERT(i < token_stride);
            count_token(h, find_slot(slots, b), tokens[b * token_stride + i]);
        }
    return GUMBEL_OK;
}
