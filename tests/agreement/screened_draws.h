/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared parts of the tests of draws with screens on the CPU.
 */
#ifndef TESTS_SCREENED_DRAWS_H
#define TESTS_SCREENED_DRAWS_H

#include "every_isa.h"
#include "generated_heads.h"
#include "maths/screen_bound.h"
#include "model_tensor.h"
#include "requests.h"

#include <stdio.h>
#include <string.h>

/* RUN_ON_EVERY_ISA() with screens of each format. */
#define RUN_ON_EVERY_FORMAT(tests, failures)                                                       \
    do {                                                                                           \
        int failures_of_format;                                                                    \
        (failures) = 0;                                                                            \
        for (int format = GUMBEL_SCREEN_BYTES; format <= GUMBEL_SCREEN_NIBBLES; format++) {        \
            format_under_test = (gumbel_screen_format)format;                                      \
            RUN_ON_EVERY_ISA(tests, failures_of_format);                                           \
            (failures) += failures_of_format;                                                      \
        }                                                                                          \
    } while (0)

/* Sets the capacity of a screen's candidate lists. */
static inline void set_list_max(void *screen, int32_t most)
{
    gumbel_screen_header *header = screen;
    header->list_max = most;
    header->check = gumbel_screen_checksum(header);
}

/* An outcome of tokens, scores and statuses alone, which a screen serves. */
static inline outcome *plain_outcome(int64_t batch, int32_t samples)
{
    outcome *generated = outcome_make(batch, samples);
    generated->output.logprobs = NULL;
    generated->output.lse = NULL;
    return generated;
}

/* Whether the named rung serves a call. */
static inline int is_served_by(const char *rung, gumbel_device *device, const gumbel_head *head,
                               const gumbel_sampling *sampling, const gumbel_output *output)
{
    char text[4096], line[64];
    assert_int_equal(gumbel_explain(device, head, NULL, sampling, output, text, sizeof text, NULL),
                     GUMBEL_OK);
    snprintf(line, sizeof line, "rows: %s:", rung);
    return strstr(text, line) != NULL;
}

static inline int is_screened(gumbel_device *device, const gumbel_head *head,
                              const gumbel_sampling *sampling, const gumbel_output *output)
{
    return is_served_by("screen", device, head, sampling, output);
}

/* The bundled model's head, with rows of it as hidden states, larger than those of a trunk; free
 * the weights. */
static inline generated_head bundled_head(int64_t batch)
{
    gumbel_tensor weight =
        model_tensor("kjv-target/model.safetensors", "model.embed_tokens.weight");
    generated_head generated = {.weight = weight, .hidden = weight};
    generated.hidden.rows = batch;
    generated.hidden.data = (const char *)weight.data + 700 * weight.cols * 2;
    return generated;
}

#endif
