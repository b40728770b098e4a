/* SPDX-License-Identifier: Apache-2.0
 *
 * Private declarations shared by the sampler's source files.
 */
#ifndef GUMBEL_LLAMA_STATE_H
#define GUMBEL_LLAMA_STATE_H

#include "gumbel_llama.h"

#include <stdatomic.h>

/* Tasks of a library call for ggml's threads. `ticket` is one atomic word, so that a thread can
 * only claim a task of the job that it has read: job number, number of tasks, next task. */
struct gumbel_llama_job {
    _Atomic uint64_t ticket; /* number << 32 | tasks << 16 | next task */
    _Atomic int32_t done;    /* number of finished tasks */
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
    int32_t *history; /* accepted tokens; a ring buffer once a window is full */
    int64_t history_room, history_count;
    struct gumbel_llama_report report;

    /* State of the graph that llama.cpp built last. */
    struct ggml_tensor *product; /* the LM head's product if the draw is fused with it; else NULL */
    gumbel_device *graph_device; /* splits calls over graph_threads by `job` */
    int32_t graph_threads;
    struct gumbel_llama_job job;
};

/* The library's structs for the parameters of one draw, and the values that they point to. */
struct gumbel_llama_request {
    float temperature, top_p, min_p, repetition, frequency, presence;
    int32_t top_k;
    uint64_t seed, position;
    int64_t bias_offsets[2], history_offsets[2];
    gumbel_truncation truncation;
    gumbel_transforms transforms;
    gumbel_sampling sampling;
};

/* The state of a sampler of gumbel_llama_init(), or of the first such sampler in a chain. Returns
 * NULL if there is none. */
struct gumbel_llama_state *gumbel_llama_find_state(const struct llama_sampler *sampler);

void gumbel_llama_set_error(gumbel_error *error, const char *field, const char *message);

/* Whether any penalty is on. */
bool gumbel_llama_is_penalised(const struct gumbel_llama_params *params);
/* Number of accepted tokens that penalties count. */
int64_t gumbel_llama_history_length(const struct gumbel_llama_state *state);
/* Reserves room for `room` accepted tokens. Returns false if memory runs out. */
bool gumbel_llama_history_grow(struct gumbel_llama_state *state, int64_t room);
/* Add an accepted token. */
void gumbel_llama_history_push(struct gumbel_llama_state *state, llama_token token);

/* Fill `request` for a draw at the report's position; `masked` also calls the mask. */
void gumbel_llama_fill_request(struct gumbel_llama_state *state, bool masked,
                               struct gumbel_llama_request *request);

/* Reserves `bytes` of workspace. Returns false if memory runs out. */
bool gumbel_llama_reserve_workspace(struct gumbel_llama_state *state, size_t bytes);

/* Draws from `head` or from `logits`; the other is NULL. Returns -1 on a failure, and stores its
 * cause in the report. */
llama_token gumbel_llama_draw(struct gumbel_llama_state *state, gumbel_device *device,
                              const gumbel_head *head, const gumbel_logits *logits);

/* Stores the cause of a failed draw in the report. Returns -1. */
llama_token gumbel_llama_fail(struct gumbel_llama_state *state, const char *field,
                              const char *message);

/* Scatter the logits of candidates into state->row by id; other tokens get -inf. `stride` is the
 * distance in bytes from one id to the next, and from one logit to the next. Returns false, and
 * reports a failed draw, for an invalid id. */
bool gumbel_llama_scatter(struct gumbel_llama_state *state, const void *ids, const void *logits,
                          size_t stride, size_t count);

/* The library's struct for `rows` rows of n_vocab logits at `data`. */
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
