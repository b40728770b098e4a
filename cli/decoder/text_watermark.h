/* SPDX-License-Identifier: Apache-2.0
 *
 * The watermark of a generate() call: a ring of each text, and the seeds and positions of draws.
 */
#ifndef DECODER_TEXT_WATERMARK_H
#define DECODER_TEXT_WATERMARK_H

#include "decoder/generate.h"

#include "gumbel/watermark.h"

/* Start from {0}; release it with text_watermark_free(), also after an error. */
typedef struct text_watermark {
    gumbel_device *device; /* a CPU; NULL: no watermark */
    gumbel_recent recent;  /* a ring for each sample, which has the drawn tokens */
    const uint64_t *key;   /* [2] */
    int32_t context;
    int32_t samples;
    uint64_t *seeds;     /* [samples] */
    uint64_t *positions; /* [samples] */
} text_watermark;

/* text_watermark_new(): makes empty rings, if the options have a watermark.
 *  device   a CPU
 *  returns  0; -1 with `error` filled. */
int text_watermark_new(text_watermark *watermark, gumbel_device *device,
                       const generate_options *options, int32_t samples, decoder_error *error);
void text_watermark_free(text_watermark *watermark);

/* text_watermark_set(): replaces the seeds and positions of draws.
 *  samples           [count] the sample of each draw
 *  seeds, positions  [count] those of draws without a watermark, unchanged if there is none
 *  returns           0; -1 with `error` filled. */
int text_watermark_set(text_watermark *watermark, const int32_t *samples, int32_t count,
                       uint64_t *seeds, uint64_t *positions, decoder_error *error);

/* text_watermark_add(): appends tokens[i] to the text of samples[i].
 *  returns  0; -1 with `error` filled. */
int text_watermark_add(text_watermark *watermark, const int32_t *samples, const int32_t *tokens,
                       int32_t count, decoder_error *error);

#endif /* DECODER_TEXT_WATERMARK_H */
