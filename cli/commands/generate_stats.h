/* SPDX-License-Identifier: Apache-2.0
 *
 * The time of the draws of a text, and of the materialised baseline for the same rows.
 */
#ifndef GUMBEL_CLI_GENERATE_STATS_H
#define GUMBEL_CLI_GENERATE_STATS_H

#include <jansson.h>
#include <stdint.h>

#include "decoder/generate.h"

/* The texts of a finished generate(): sample j is the prompt, then drawn[j]. */
struct written_texts {
    const token_list *prompt;
    const token_list *drawn; /* [samples] */
    int32_t samples;
};

struct generate_stats {
    generate_times times;
    double tokens_per_second; /* all samples, without prefill */
    double head_fraction;     /* head product and draw, of the decode time */
    gumbel_device_info where; /* the device of the draws */
    /* On a CPU only; step_rows is 0 on a GPU. */
    int64_t step_rows; /* rows of a timed step; the three below are medians of its seconds */
    double step_fused;
    double step_product;
    double step_materialised; /* the product, then [B, V] stores, softmax and inverse CDF */
};

/* On a CPU, feeds the texts again for their hidden states, of at most 16 samples and the last 32
 * tokens that all samples have, and times both ways on these in turns. fail() on an error of the
 * decoder. */
struct generate_stats measure_generate_stats(decoder *model, gumbel_device *device,
                                             const struct written_texts *texts,
                                             const generate_times *times, float temperature);

/* Prints a few lines on stderr. */
void print_generate_stats(const struct generate_stats *stats);

json_t *generate_stats_to_json(const struct generate_stats *stats);

#endif
