/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/text_watermark.h"

#include <stdlib.h>

int text_watermark_new(text_watermark *w, gumbel_device *device, const generate_options *options,
                       int32_t samples, decoder_error *error)
{
    const size_t n = (size_t)samples;

    if (!options->watermark_key) {
        return 0;
    }
    *w = (text_watermark){
        .device = device,
        .recent = {.struct_size = sizeof w->recent,
                   .capacity = options->max_tokens,
                   .tokens = calloc(n * (size_t)options->max_tokens, sizeof *w->recent.tokens),
                   .count = calloc(n, sizeof *w->recent.count)},
        .key = options->watermark_key,
        .context = options->watermark_context,
        .samples = samples,
        .seeds = calloc(n, sizeof *w->seeds),
        .positions = calloc(n, sizeof *w->positions)};
    if (!w->recent.tokens || !w->recent.count || !w->seeds || !w->positions) {
        return decoder_fail(error, NULL, "num_samples", "out of memory for %d texts", samples);
    }
    return 0;
}

void text_watermark_free(text_watermark *w)
{
    free(w->recent.tokens);
    free(w->recent.count);
    free(w->seeds);
    free(w->positions);
    *w = (text_watermark){0};
}

int text_watermark_set(text_watermark *w, const int32_t *samples, int32_t count, uint64_t *seeds,
                       uint64_t *positions, decoder_error *error)
{
    const int32_t context = w->context;
    const uint64_t position = positions[0];
    const gumbel_watermark mark = {.struct_size = sizeof mark,
                                   .key = w->key,
                                   .key_stride = GUMBEL_SAME,
                                   .context = {&context, GUMBEL_SAME},
                                   .seed = {seeds, GUMBEL_SAME},
                                   .position = {&position, GUMBEL_SAME},
                                   .slots = {samples, w->samples}};
    const gumbel_watermark_draws draws = {
        .struct_size = sizeof draws, .seed = w->seeds, .position = w->positions};
    gumbel_error problem;

    if (!w->device) {
        return 0;
    }
    if (gumbel_watermark_rows(w->device, NULL, &mark, &w->recent, count, &draws, &problem) !=
        GUMBEL_OK) {
        return decoder_fail_call(error, &problem);
    }
    for (int32_t i = 0; i < count; i++) {
        seeds[i] = w->seeds[samples[i]];
        positions[i] = w->positions[samples[i]];
    }
    return 0;
}

int text_watermark_add(text_watermark *w, const int32_t *samples, const int32_t *tokens,
                       int32_t count, decoder_error *error)
{
    const gumbel_slots slots = {samples, w->samples};
    gumbel_error problem;

    if (!w->device) {
        return 0;
    }
    return gumbel_recent_append(w->device, NULL, &w->recent, count, &slots, tokens, 1, NULL,
                                &problem) == GUMBEL_OK
               ? 0
               : decoder_fail_call(error, &problem);
}
