/* SPDX-License-Identifier: Apache-2.0
 *
 * One draw: its parameters, and a row of candidates.
 */
#include "gumbel_llama_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------- errors ---- */

void gumbel_llama_set_error(gumbel_error *error, const char *field, const char *message)
{
    if (!error)
        return;
    snprintf(error->field, sizeof error->field, "%s", field);
    snprintf(error->message, sizeof error->message, "%s", message);
}

llama_token gumbel_llama_fail(struct gumbel_llama_state *state, const char *field,
                              const char *message)
{
    gumbel_llama_set_error(&state->report.error, field, message);
    return -1;
}

/* -------------------------------------------------------------------------------- draws ---- */

/* Call the mask; returns its words, or NULL if all tokens are allowed. */
static const int32_t *call_mask(struct gumbel_llama_state *state)
{
    const struct gumbel_llama_params *params = &state->params;
    if (!params->mask)
        return NULL;
    memset(state->words, 0xff, ((size_t)state->n_vocab + 31) / 32 * sizeof *state->words);
    if (!params->mask(params->mask_context, state->report.position, state->words, state->n_vocab))
        return NULL;
    return (const int32_t *)state->words;
}

gumbel_status gumbel_llama_fill_request(struct gumbel_llama_state *state, gumbel_device *device,
                                        bool masked, struct gumbel_llama_request *r,
                                        gumbel_error *error)
{
    const struct gumbel_llama_params *p = &state->params;
    *r = (struct gumbel_llama_request){
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .repetition = p->repetition,
        .frequency = p->frequency,
        .presence = p->presence,
        .top_k = p->top_k,
        .seed = p->seed,
        .position = (uint64_t)state->report.position,
        .bias_offsets = {0, p->bias_count},
        .history_offsets = {0, gumbel_llama_ring_length(&state->penalised)}};
    r->truncation = (gumbel_truncation){.struct_size = sizeof r->truncation,
                                        .min_p = {&r->min_p},
                                        .top_k = {&r->top_k},
                                        .top_p = {&r->top_p},
                                        .order = p->order,
                                        .ties = p->ties};
    gumbel_llama_fill_programs(state, &r->programs, &r->truncation);
    r->transforms = (gumbel_transforms){.struct_size = sizeof r->transforms};
    if (masked)
        r->transforms.mask.data = call_mask(state);
    if (p->bias_count > 0)
        r->transforms.bias = (gumbel_token_lists){
            .offsets = r->bias_offsets, .ids = state->bias_ids, .values = state->bias_values};
    if (gumbel_llama_is_penalised(p)) {
        r->transforms.repetition.data = &r->repetition;
        r->transforms.frequency.data = &r->frequency;
        r->transforms.presence.data = &r->presence;
        r->transforms.output_tokens =
            (gumbel_token_lists){.offsets = r->history_offsets, .ids = state->penalised.tokens};
    }
    r->sampling = (gumbel_sampling){.struct_size = sizeof r->sampling,
                                    .temperature = {&r->temperature},
                                    .seed = {&r->seed},
                                    .position = {&r->position},
                                    .transforms = &r->transforms,
                                    .truncation = &r->truncation};
    return gumbel_llama_make_lists(state, device, &r->transforms, error);
}

bool gumbel_llama_reserve_workspace(struct gumbel_llama_state *state, size_t bytes)
{
    const size_t unit = GUMBEL_WORKSPACE_ALIGNMENT;
    if (state->workspace && bytes <= state->workspace_bytes)
        return true;
    free(state->workspace);
    state->workspace_bytes = (bytes / unit + 1) * unit;
    state->workspace = aligned_alloc(unit, state->workspace_bytes);
    return state->workspace != NULL;
}

gumbel_logits gumbel_llama_logits(const struct gumbel_llama_state *state, const float *data,
                                  int64_t rows)
{
    return (gumbel_logits){
        .struct_size = sizeof(gumbel_logits),
        .logits = {.data = data, .dtype = GUMBEL_FLOAT32, .rows = rows, .cols = state->n_vocab}};
}

/* Calls the library for one row, with a workspace. */
static gumbel_status call_sample(struct gumbel_llama_state *state, gumbel_device *device,
                                 const gumbel_head *head, const gumbel_logits *logits,
                                 const gumbel_sampling *sampling, const gumbel_output *output,
                                 gumbel_error *error)
{
    size_t bytes = 0;
    const gumbel_status status =
        gumbel_workspace_size(device, head, logits, sampling, output, &bytes, error);

    if (status != GUMBEL_OK)
        return status;
    if (!gumbel_llama_reserve_workspace(state, bytes)) {
        gumbel_llama_set_error(error, "n_vocab", "out of memory for a workspace");
        return GUMBEL_ERROR_MEMORY;
    }
    return head
               ? gumbel_sample(device, NULL, head, sampling, output, state->workspace, bytes, error)
               : gumbel_sample_logits(device, NULL, logits, sampling, output, state->workspace,
                                      bytes, error);
}

/* Stores the drawn token's log-probability before adaptive_p, whose target follows from it. */
static gumbel_status score_before_adaptive(struct gumbel_llama_state *state, gumbel_device *device,
                                           const gumbel_head *head, const gumbel_logits *logits,
                                           struct gumbel_llama_request *r, const int32_t *token,
                                           gumbel_error *error)
{
    int32_t scored;
    const gumbel_output output = {
        .struct_size = sizeof output, .tokens = &scored, .logprobs = &state->drawn_logprob};

    r->programs.adaptive_target.data = NULL;
    r->sampling.given.data = token;
    return call_sample(state, device, head, logits, &r->sampling, &output, error);
}

llama_token gumbel_llama_draw(struct gumbel_llama_state *state, gumbel_device *device,
                              const gumbel_head *head, const gumbel_logits *logits)
{
    struct gumbel_llama_request r;
    gumbel_error error = {"", ""};
    int32_t token = -1, row = GUMBEL_ROW_OK;
    gumbel_output output = {.struct_size = sizeof output, .tokens = &token, .status = &row};

    if (state->report.position < 0)
        return gumbel_llama_fail(state, "position", "no token has been accepted yet");
    if (state->params.mirostat)
        output.logprobs = &state->drawn_logprob;
    state->drawn = -1;
    gumbel_status status = gumbel_llama_fill_request(state, device, true, &r, &error);
    if (status == GUMBEL_OK)
        status = call_sample(state, device, head, logits, &r.sampling, &output, &error);
    if (status == GUMBEL_OK && row == GUMBEL_ROW_OK && gumbel_llama_is_adaptive(&state->params))
        status = score_before_adaptive(state, device, head, logits, &r, &token, &error);
    if (status != GUMBEL_OK)
        return gumbel_llama_fail(state, error.field, error.message);
    if (row != GUMBEL_ROW_OK)
        return gumbel_llama_fail(state, "logits", gumbel_row_status_string(row));
    state->drawn = token;
    return token;
}

/* Candidates that no sampler has reordered are sorted by id: copy them in blocks, without a branch
 * for each token. False at the first block in another order. */
static bool copy_sorted_candidates(float *row, const char *id, const char *logit, size_t stride,
                                   size_t count)
{
    enum { BLOCK = 256 };
    for (size_t start = 0; start < count; start += BLOCK) {
        const size_t end = count - start < BLOCK ? count : start + BLOCK;
        llama_token differs = 0;
        for (size_t i = start; i < end; i++) {
            differs |= *(const llama_token *)(id + i * stride) ^ (llama_token)i;
            row[i] = *(const float *)(logit + i * stride);
        }
        if (differs != 0)
            return false;
    }
    return true;
}

bool gumbel_llama_scatter(struct gumbel_llama_state *state, const void *ids, const void *logits,
                          size_t stride, size_t count)
{
    const char *id = ids, *logit = logits;
    const size_t n = (size_t)state->n_vocab;

    if (count == n && copy_sorted_candidates(state->row, id, logit, stride, n))
        return true;
    for (size_t j = 0; j < n; j++)
        state->row[j] = -INFINITY;
    for (size_t j = 0; j < count; j++) {
        const llama_token token = *(const llama_token *)(id + j * stride);
        if (token < 0 || token >= state->n_vocab) {
            gumbel_llama_fail(state, "candidates", "an id is not in [0, n_vocab)");
            return false;
        }
        state->row[token] = *(const float *)(logit + j * stride);
    }
    return true;
}
