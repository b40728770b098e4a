/* SPDX-License-Identifier: Apache-2.0
 *
 * Private declarations shared by the sampler's source files.
 */
#ifndef GUMBEL_LLAMA_STATE_H
#define GUMBEL_LLAMA_STATE_H

#include "gumbel_llama.h"

#include <gumbel/programs.h>

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

/* The last `window` accepted tokens; -1: all. Token i, from 0 on, is at i % window. */
struct gumbel_llama_ring {
    int32_t *tokens; /* [room] */
    int64_t window, room;
    uint64_t count; /* of tokens so far, also those no longer kept */
};

struct gumbel_llama_dry;

/* State of adaptive_p: the target of the next draw, and sums over the drawn tokens. */
struct gumbel_llama_adaptive {
    float target, sum, weight;
};

struct gumbel_llama_state {
    struct gumbel_llama_params params; /* arrays are NULL, or the state's own */
    int32_t n_vocab;
    gumbel_device *device; /* of draws outside the graph */
    void *workspace;
    size_t workspace_bytes;
    float *row;      /* [n_vocab] candidates by id */
    uint32_t *words; /* [ceil(n_vocab / 32)] with a mask, else NULL */
    char *samplers;  /* params.samplers, or NULL */
    int32_t *bias_ids;
    float *bias_values;
    struct gumbel_llama_ring penalised, repeated; /* windows of penalties and of DRY */
    struct gumbel_llama_dry *dry;                 /* NULL: off */
    uint8_t rules[GUMBEL_PROGRAM_LENGTH];         /* the program; all GUMBEL_PROGRAM_END: none */
    float surprise;                               /* mu of mirostat */
    struct gumbel_llama_adaptive adaptive;
    llama_token drawn; /* with mirostat or adaptive_p: the token of the last draw if it has not been
                        * accepted yet; else -1 */
    float drawn_logprob; /* its log-probability, without adaptive_p */
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
    gumbel_programs programs;
    gumbel_truncation truncation;
    gumbel_transforms transforms;
    gumbel_sampling sampling;
};

/* The state of a sampler of gumbel_llama_init(), or of the first such sampler in a chain. Returns
 * NULL if there is none. */
struct gumbel_llama_state *gumbel_llama_find_state(const struct llama_sampler *sampler);

void gumbel_llama_set_error(gumbel_error *error, const char *field, const char *message);

/* Whether any penalty is on; whether DRY is. */
bool gumbel_llama_is_penalised(const struct gumbel_llama_params *params);
bool gumbel_llama_has_dry(const struct gumbel_llama_params *params);

/* Number of tokens that a ring keeps. */
int64_t gumbel_llama_ring_length(const struct gumbel_llama_ring *ring);
/* Append a token, or copy a ring of the same window. They return false if memory runs out. */
bool gumbel_llama_ring_push(struct gumbel_llama_ring *ring, llama_token token);
bool gumbel_llama_ring_copy(const struct gumbel_llama_ring *from, struct gumbel_llama_ring *to);

/* Start the windows by state->params, whose breakers are copied. Returns false if memory runs
 * out. */
bool gumbel_llama_start_recent(struct gumbel_llama_state *state);
void gumbel_llama_free_recent(struct gumbel_llama_state *state);
/* Adds the biases of DRY, which follow from the accepted tokens, to `transforms`. */
gumbel_status gumbel_llama_make_lists(struct gumbel_llama_state *state, gumbel_device *device,
                                      gumbel_transforms *transforms, gumbel_error *error);

/* Reads the program from state->params. Returns false, with an error, for parameters that no
 * program serves. */
bool gumbel_llama_read_rules(struct gumbel_llama_state *state, gumbel_error *error);
/* Adds the program, if there is one, to `truncation`. */
void gumbel_llama_fill_programs(const struct gumbel_llama_state *state, gumbel_programs *programs,
                                gumbel_truncation *truncation);
/* Whether draws follow adaptive_p. */
bool gumbel_llama_is_adaptive(const struct gumbel_llama_params *params);
/* Set the states of mirostat and adaptive_p to those of the first draw; change them for an accepted
 * token. */
void gumbel_llama_reset_rules(struct gumbel_llama_state *state);
void gumbel_llama_update_rules(struct gumbel_llama_state *state, llama_token token);

/* Fill `request` for a draw on `device` at the report's position; `masked` also calls the mask. */
gumbel_status gumbel_llama_fill_request(struct gumbel_llama_state *state, gumbel_device *device,
                                        bool masked, struct gumbel_llama_request *request,
                                        gumbel_error *error);

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
