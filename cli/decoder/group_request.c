/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/group_request.h"

#include <stdlib.h>
#include <string.h>

/* Allocates GENERATE_GROUP copies of the first list. */
static int repeat_lists(const gumbel_token_lists *list, gumbel_token_lists *copies,
                        decoder_error *error)
{
    if (!list->offsets) {
        return 0;
    }
    size_t first = (size_t)list->offsets[0];
    size_t count = (size_t)list->offsets[1] - first;
    int64_t *offsets = calloc(GENERATE_GROUP + 1, sizeof *offsets);
    int32_t *ids = calloc(GENERATE_GROUP * count + 1, sizeof *ids);
    float *values = list->values ? calloc(GENERATE_GROUP * count + 1, sizeof *values) : NULL;
    *copies = (gumbel_token_lists){.offsets = offsets, .ids = ids, .values = values};
    if (!offsets || !ids || (list->values && !values)) {
        return decoder_fail(error, NULL, "transforms", "out of memory for lists of %zu", count);
    }
    for (size_t row = 0; row < GENERATE_GROUP; row++) {
        offsets[row + 1] = (int64_t)((row + 1) * count);
        for (size_t i = 0; i < count; i++) {
            ids[row * count + i] = list->ids[first + i];
        }
        for (size_t i = 0; values && i < count; i++) {
            values[row * count + i] = list->values[first + i];
        }
    }
    return 0;
}

static void free_lists(const gumbel_token_lists *lists)
{
    free((void *)lists->offsets);
    free((void *)lists->ids);
    free((void *)lists->values);
}

/* Allocates a history for each sample. Sets the prompt's bits in the first one and copies them to
 * the others; the output is empty, so its bits and counts remain 0. */
static int start_history(group_request *r, const generate_options *options, int64_t vocab,
                         int32_t samples, decoder_error *error)
{
    size_t rows = (size_t)samples;
    r->words = (vocab + 31) / 32;
    size_t words = (size_t)r->words;
    r->history = (gumbel_history){.struct_size = sizeof r->history,
                                  .vocab_size = vocab,
                                  .prompt = calloc(rows * words, sizeof(uint32_t)),
                                  .output = calloc(rows * words, sizeof(uint32_t)),
                                  .counts = calloc(rows * (size_t)vocab, sizeof(uint16_t))};
    if (!r->history.prompt || !r->history.output || !r->history.counts) {
        return decoder_fail(error, NULL, "num_samples", "out of memory for %d histories", samples);
    }
    int64_t offsets[2] = {0, options->prompt_count};
    gumbel_token_lists prompt = {.offsets = offsets, .ids = options->prompt};
    gumbel_error failure;
    if (gumbel_history_start(r->device, NULL, &r->history, 1, NULL, &prompt, NULL, &failure) !=
        GUMBEL_OK) {
        return decoder_fail_call(error, &failure);
    }
    for (size_t row = 1; row < rows; row++) {
        memcpy(r->history.prompt + row * words, r->history.prompt, words * sizeof(uint32_t));
    }
    return 0;
}

int group_request_new(group_request *request, gumbel_device *device,
                      const generate_options *options, int64_t vocab, int32_t samples,
                      decoder_error *error)
{
    const gumbel_transforms *transforms = options->transforms;
    *request = (group_request){.device = device};
    if (!transforms) {
        return 0;
    }
    request->transforms =
        (gumbel_transforms){.struct_size = sizeof *transforms,
                            .mask = {transforms->mask.data, GUMBEL_SAME},
                            .repetition = {transforms->repetition.data, GUMBEL_SAME},
                            .frequency = {transforms->frequency.data, GUMBEL_SAME},
                            .presence = {transforms->presence.data, GUMBEL_SAME}};
    if (repeat_lists(&transforms->allowed, &request->transforms.allowed, error) != 0 ||
        repeat_lists(&transforms->banned, &request->transforms.banned, error) != 0 ||
        repeat_lists(&transforms->bias, &request->transforms.bias, error) != 0) {
        return -1;
    }
    return transforms->repetition.data || transforms->frequency.data || transforms->presence.data
               ? start_history(request, options, vocab, samples, error)
               : 0;
}

void group_request_free(group_request *request)
{
    free_lists(&request->transforms.allowed);
    free_lists(&request->transforms.banned);
    free_lists(&request->transforms.bias);
    free(request->history.prompt);
    free(request->history.output);
    free(request->history.counts);
    *request = (group_request){0};
}

gumbel_transforms group_request_get_transforms(const group_request *request, int32_t first,
                                               gumbel_history *history)
{
    gumbel_transforms rows = request->transforms;
    *history = request->history;
    if (history->counts) {
        history->prompt += first * request->words;
        history->output += first * request->words;
        history->counts = (uint16_t *)history->counts + first * history->vocab_size;
        rows.history = history;
    }
    return rows;
}

int group_request_add_tokens(const group_request *request, const int32_t *tokens, int32_t count,
                             decoder_error *error)
{
    gumbel_error failure;
    if (request->history.counts &&
        gumbel_history_update(request->device, NULL, &request->history, count, NULL, tokens, 0,
                              NULL, &failure) != GUMBEL_OK) {
        return decoder_fail_call(error, &failure);
    }
    return 0;
}

void group_request_copy_history(const group_request *request, int32_t to, int32_t from)
{
    const gumbel_history *h = &request->history;
    size_t words = (size_t)request->words;
    size_t vocab = (size_t)h->vocab_size;
    if (h->counts && to != from) {
        memcpy(h->prompt + (size_t)to * words, h->prompt + (size_t)from * words,
               words * sizeof *h->prompt);
        memcpy(h->output + (size_t)to * words, h->output + (size_t)from * words,
               words * sizeof *h->output);
        uint16_t *counts = h->counts;
        memcpy(counts + (size_t)to * vocab, counts + (size_t)from * vocab, vocab * sizeof *counts);
    }
}
