/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of logits, and draws from them, of the tests without a model.
 */
#ifndef TEST_ROWS_H
#define TEST_ROWS_H

#include "gumbel_llama.h"
#include "test_chain.h"
#include "test_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = 997, STEPS = 48 };

/* Logits of step `step`, between -6 and 6. */
static inline void make_logits(int step, float *logits)
{
    for (uint32_t i = 0; i < V; i++) {
        uint32_t x = (i + 1) * 2654435761u ^ (uint32_t)(step + 1) * 0x9e3779b9u;
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        logits[i] = (float)(x % 12001) / 1000 - 6;
    }
}

static inline llama_token_data_array make_array(const float *logits, llama_token_data *data)
{
    for (int32_t i = 0; i < V; i++)
        data[i] = (llama_token_data){i, logits[i], 0};
    return (llama_token_data_array){.data = data, .size = V, .selected = -1};
}

static inline struct llama_sampler *make_sampler(const struct gumbel_llama_params *params)
{
    gumbel_error error = {"", ""};
    struct llama_sampler *sampler = gumbel_llama_init(V, params, &error);
    if (!sampler) {
        printf("gumbel_llama_init: %s: %s\n", error.field, error.message);
        exit(2);
    }
    return sampler;
}

static inline llama_token draw_token(struct llama_sampler *sampler, const float *logits)
{
    static llama_token_data data[V];
    llama_token_data_array array = make_array(logits, data);
    llama_sampler_apply(sampler, &array);
    return array.selected < 0 ? -1 : array.data[array.selected].id;
}

/* The library's own draw. */
static inline llama_token draw_directly(const float *logits, uint64_t position, float temperature,
                                        int32_t top_k, float top_p, float min_p, uint64_t seed)
{
    static _Alignas(64) char workspace[1 << 20];
    static gumbel_device *device;
    const gumbel_truncation truncation = {.struct_size = sizeof truncation,
                                          .min_p = {&min_p},
                                          .top_k = {&top_k},
                                          .top_p = {&top_p},
                                          .order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE};
    const gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                      .temperature = {&temperature},
                                      .seed = {&seed},
                                      .position = {&position},
                                      .truncation = &truncation};
    const gumbel_logits from = {
        .struct_size = sizeof from,
        .logits = {.data = logits, .dtype = GUMBEL_FLOAT32, .rows = 1, .cols = V}};
    int32_t token = -1;
    const gumbel_output output = {.struct_size = sizeof output, .tokens = &token};
    if ((!device && gumbel_open(NULL, &device, NULL) != GUMBEL_OK) ||
        gumbel_sample_logits(device, NULL, &from, &sampling, &output, workspace, sizeof workspace,
                             NULL) != GUMBEL_OK)
        exit(2);
    return token;
}

static inline struct gumbel_llama_report report_of(const struct llama_sampler *sampler)
{
    struct gumbel_llama_report report = {0};
    CHECK(gumbel_llama_describe(sampler, &report), "a sampler of ours");
    return report;
}

static inline void check_error(int32_t n_vocab, const struct gumbel_llama_params *params,
                               const char *field)
{
    gumbel_error error = {"", ""};
    struct llama_sampler *sampler = gumbel_llama_init(n_vocab, params, &error);
    CHECK(!sampler && strstr(error.field, field) && error.message[0], "%s: '%s' '%s'", field,
          error.field, error.message);
    CHECK(!gumbel_llama_init(n_vocab, params, NULL), "%s without an error struct", field);
    if (sampler)
        llama_sampler_free(sampler);
}

/* Verifies drafts behind four accepted tokens, and expects an error that changes nothing. */
static inline void check_draft_error(const struct gumbel_llama_params *params, int32_t count,
                                     int32_t first, gumbel_status wanted, const char *field)
{
    const llama_token drafts[4] = {1, 2, 3, 4};
    const struct gumbel_llama_draft draft = {.tokens = drafts, .count = count, .first = first};
    struct llama_sampler *sampler = make_sampler(params);
    llama_token tokens[5];
    int32_t emitted = -7;
    gumbel_error error = {"", ""};
    for (int32_t i = 0; i < 4; i++)
        llama_sampler_accept(sampler, i);
    /* The error is returned before the context is read. */
    const gumbel_status status =
        gumbel_llama_verify(sampler, NULL, &draft, tokens, &emitted, &error);
    CHECK(status == wanted && strcmp(error.field, field) == 0, "%s: %d, '%s' '%s'", field, status,
          error.field, error.message);
    CHECK(emitted == -7 && report_of(sampler).position == params->position + 4, "left alone");
    llama_sampler_free(sampler);
}

#endif
