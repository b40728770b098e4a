/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the sampler share. Private to this folder.
 */
#ifndef GUMBEL_LLAMA_STATE_H
#define GUMBEL_LLAMA_STATE_H

#include "gumbel_llama.h"

#include <stdatomic.h>

/* A part of the library's call that waits for a thread of ggml. `ticket` is one word, so that a
 * thread claims a task of the job that it has looked at: its number, its tasks, the next task. */
struct gumbel_llama_job {
    _Atomic uint64_t ticket; /* number << 32 | tasks << 16 | next task */
    _Atomic int32_t done;    /* tasks that have ended */
    _Atomic int32_t closed;  /* 1: no more jobs in this run of the graph */
    gumbel_task task;
    void *argument;
};

struct gumbel_llama_state {
    struct gumbel_llama_params params; /* without arrays */
    int32_t n_vocab;
    gumbel_device *device; /* of draws outside the graph */
    void *workspace;
    size_t workspace_bytes;
    float *row;      /* [n_vocab] candidates by id */
    uint32_t *words; /* [ceil(n_vocab / 32)] with a mask, else NULL */
    int32_t *bias_ids;
    float *bias_values;
    int32_t *history; /* accepted tokens, a ring where a window is full */
    int64_t history_room, history_count;
    struct gumbel_llama_report report;

    /* In the graph that llama.cpp built last. */
    struct ggml_tensor *product; /* the LM head's, if a draw is fused with it; else NULL */
    gumbel_device *graph_device; /* split over graph_threads by `job` */
    int32_t graph_threads;
    struct gumbel_llama_job job;
};

/* The parameters of one draw, in the library's words. */
struct gumbel_llama_request {
    float temperature, top_p, min_p, repetition, frequency, presence;
    int32_t top_k;
    uint64_t seed, position;
    int64_t bias_offsets[2], history_offsets[2];
    gumbel_truncation truncation;
    gumbel_transforms transforms;
    gumbel_sampling sampling;
};

/* The state of a sampler of ours, or of the first in a chain; NULL without. */
struct gumbel_llama_state *gumbel_llama_state_of(const struct llama_sampler *sampler);

void gumbel_llama_set_error(gumbel_error *error, const char *field, const char *message);

/* Whether there are penalties; accepted tokens that they count; room for more; one more. */
bool gumbel_llama_is_penalised(const struct gumbel_llama_params *params);
int64_t gumbel_llama_history_length(const struct gumbel_llama_state *state);
bool gumbel_llama_history_grow(struct gumbel_llama_state *state, int64_t room);
void gumbel_llama_history_push(struct gumbel_llama_state *state, llama_token token);

/* Fill `request` for a draw at the report's position; `masked` asks the mask, too. */
void gumbel_llama_request_of(struct gumbel_llama_state *state, bool masked,
                             struct gumbel_llama_request *request);

/* Room for `bytes` of workspace; false without memory. */
bool gumbel_llama_workspace(struct gumbel_llama_state *state, size_t bytes);

/* Draw by one of head and logits. -1 on a failure, which the report then tells. */
llama_token gumbel_llama_draw(struct gumbel_llama_state *state, gumbel_device *device,
                              const gumbel_head *head, const gumbel_logits *logits);

/* Note a failed draw; returns -1. */
llama_token gumbel_llama_fail(struct gumbel_llama_state *state, const char *field,
                              const char *message);

/* Lay candidates out by id in state->row, -inf where there is none; false, and a failure, if an id
 * is none. ids and logits have `stride` bytes from one to the next. */
bool gumbel_llama_scatter(struct gumbel_llama_state *state, const void *ids, const void *logits,
                          size_t stride, size_t count);

/* Logits of n_vocab tokens at `data`. */
gumbel_logits gumbel_llama_logits(const struct gumbel_llama_state *state, const float *data,
                                  int64_t rows);

/* The callbacks of gumbel_llama_graph.c. */
bool gumbel_llama_backend_init(struct llama_sampler *sampler, ggml_backend_buffer_type_t type,
                               uint32_t outputs);
void gumbel_llama_backend_apply(struct llama_sampler *sampler, struct ggml_context *context,
                                struct ggml_cgraph *graph, struct llama_sampler_data *data);
void gumbel_llama_backend_set_input(struct llama_sampler *sampler);
void gumbel_llama_backend_reset(struct llama_sampler *sampler);

#endif /* GUMBEL_LLAMA_STATE_H */
