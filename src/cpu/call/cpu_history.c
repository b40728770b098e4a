/* SPDX-License-Identifier: Apache-2.0
 *
 * What penalties count, kept from one decode step to the next.
 */
#include "maths/edits.h"
#include "cpu/host/cpu_device.h"

static void count_output(const gumbel_history *h, int64_t b, int64_t token)
{
    uint16_t *count = h->counts + b * h->vocab_size + token;
    h->output[b * gumbel_words_of(h->vocab_size) + (token >> 5)] |= 1u << (token & 31);
    if (*count < GUMBEL_COUNT_MOST)
        ++*count;
}

gumbel_status cpu_history_start(gumbel_device *device, const gumbel_history *h, int64_t batch,
                                const gumbel_token_lists *prompts,
                                const gumbel_token_lists *outputs, void *stream,
                                gumbel_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    size_t words = (size_t)gumbel_words_of(h->vocab_size) * (size_t)batch;
    memset(h->prompt, 0, words * sizeof *h->prompt);
    memset(h->output, 0, words * sizeof *h->output);
    memset(h->counts, 0, (size_t)h->vocab_size * (size_t)batch * sizeof *h->counts);
    for (int64_t b = 0; b < batch && prompts->offsets; b++) {
        uint32_t *row = h->prompt + b * gumbel_words_of(h->vocab_size);
        for (int64_t i = prompts->offsets[b]; i < prompts->offsets[b + 1]; i++)
            if (prompts->ids[i] < h->vocab_size)
                row[prompts->ids[i] >> 5] |= 1u << (prompts->ids[i] & 31);
    }
    for (int64_t b = 0; b < batch && outputs->offsets; b++)
        for (int64_t i = outputs->offsets[b]; i < outputs->offsets[b + 1]; i++)
            if (outputs->ids[i] < h->vocab_size)
                count_output(h, b, outputs->ids[i]);
    return GUMBEL_OK;
}

gumbel_status cpu_history_update(gumbel_device *device, const gumbel_history *h, int64_t batch,
                                 const int32_t *tokens, int64_t token_stride, void *stream,
                                 gumbel_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    for (int64_t b = 0; b < batch; b++) {
        int32_t token = tokens[b * token_stride];
        if (token >= 0 && token < h->vocab_size)
            count_output(h, b, token);
    }
    return GUMBEL_OK;
}
