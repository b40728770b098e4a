/* SPDX-License-Identifier: Apache-2.0
 *
 * What drawing cost while a text was written, and what the materialised route would have cost.
 */
#ifndef GUMBEL_CLI_GENERATE_STATS_H
#define GUMBEL_CLI_GENERATE_STATS_H

#include <jansson.h>
#include <stdint.h>

#include "decoder/generate.h"

/* The texts of a finished generate(): sample j has the prompt and then drawn[j]. */
struct written_texts {
    const token_list *prompt;
    const token_list *drawn; /* [samples] */
    int32_t samples;
};

struct generate_stats {
    generate_times times;
    double tokens_per_second; /* all samples, prefill left out */
    double head_share;        /* of decode time: head product and draw */
    gumbel_device_info where; /* the device of the draws */
    /* On the CPU alone; step_rows is 0 elsewhere. */
    int64_t step_rows; /* rows of a timed step; the three below are medians of its seconds */
    double step_fused;
    double step_product;
    double step_materialised; /* the product, then [B, V] stores, softmax and inverse CDF */
};

/* On the CPU, feed the texts once more to get their hidden states, at most 16 samples and the last
 * 32 tokens that all of them have, and time both ways on those, in turns. fail()s where the decoder
 * does. */
struct generate_stats measure_generate_stats(decoder *model, gumbel_device *device,
                                             const struct written_texts *texts,
                                             const generate_times *times, float temperature);

/* A few lines on stderr. */
void print_generate_stats(const struct generate_stats *stats);

json_t *generate_stats_to_json(const struct generate_stats *stats);

#endif
