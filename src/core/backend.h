/* SPDX-License-Identifier: Apache-2.0
 *
 * What a backend offers to the public entry points. They validate; a backend may assert.
 *
 * Where `sample` is NULL the data are in host memory and the entry points finish the summaries. A
 * backend that has it keeps them where the host cannot read: row parameters and lists are then not
 * checked.
 *
 * What a call asks for beyond plain sampling are the bits of problem->request. A call with a bit
 * that `serves` lacks is refused by the field's name before a backend sees it, so a new bit there
 * is all that a backend needs to begin to offer a thing. Calls whose bits are among
 * GUMBEL_REQUEST_TRANSFORMS go to `partial` and `sample` as plain ones do, for transforms only
 * change z. All others need the whole row: they go to `sample_request`, or to `sample` where the
 * backend has that. Their outputs are those of gumbel_output in full, tokens and status included.
 */
#ifndef GUMBEL_CORE_BACKEND_H
#define GUMBEL_CORE_BACKEND_H

#include "core/problem.h"

typedef struct gumbel_backend {
    uint32_t serves; /* gumbel_request bits */
    void (*close)(gumbel_device *device);
    void (*describe)(const gumbel_device *device, gumbel_device_info *info);
    /* Bytes of workspace; SIZE_MAX where they cannot be counted. hidden_size 0: from logits. */
    size_t (*workspace_size)(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                             int32_t num_samples);
    /* Bytes that this problem's request takes behind those; 0 for a plain call. SIZE_MAX as above.
     * with_mass is not known yet. Optional: none. */
    size_t (*request_size)(const gumbel_device *device, const gumbel_problem *problem);
    /* Fill summaries [B, S]. */
    gumbel_status (*partial)(gumbel_device *device, const gumbel_problem *problem,
                             gumbel_summary *summaries, void *workspace, gumbel_error *error);
    /* Fill the outputs. Optional. */
    gumbel_status (*sample)(gumbel_device *device, const gumbel_problem *problem,
                            const gumbel_output *output, void *workspace, gumbel_error *error);
    /* Fill the outputs of a call with a bit beyond GUMBEL_REQUEST_TRANSFORMS, finished. Optional
     * beside `sample`. */
    gumbel_status (*sample_request)(gumbel_device *device, const gumbel_problem *problem,
                                    const gumbel_output *output, void *workspace,
                                    gumbel_error *error);
    /* Fill processed [B, V] at `stride`: z, -inf for what cannot be drawn. From logits, batch > 0;
     * `processed` may be the logits. Optional. */
    gumbel_status (*process)(gumbel_device *device, const gumbel_problem *problem, float *processed,
                             int64_t stride, void *workspace, gumbel_error *error);
    /* Fill probabilities [B, V] likewise. Optional beside `process`. */
    gumbel_status (*softmax)(gumbel_device *device, const gumbel_problem *problem,
                             float *probabilities, int64_t stride, void *workspace,
                             gumbel_error *error);
    /* Forget rows [0, batch) and count lists; count one more token a row. batch > 0. Optional. */
    gumbel_status (*history_start)(gumbel_device *device, const gumbel_history *history,
                                   int64_t batch, const gumbel_token_lists *prompts,
                                   const gumbel_token_lists *outputs, void *stream,
                                   gumbel_error *error);
    gumbel_status (*history_update)(gumbel_device *device, const gumbel_history *history,
                                    int64_t batch, const int32_t *tokens, int64_t token_stride,
                                    void *stream, gumbel_error *error);
    /* Fill noise [B, S, V] of a problem that has no tensors, only a batch and a range. */
    gumbel_status (*noise)(gumbel_device *device, const gumbel_problem *problem, float *noise,
                           int64_t noise_stride, gumbel_error *error);
    /* Store tokens and move positions on. batch > 0. */
    gumbel_status (*advance)(gumbel_device *device, const gumbel_step *step, gumbel_error *error);
    /* Compute every tile of logits and drop it. */
    gumbel_status (*multiply)(gumbel_device *device, const gumbel_problem *problem, void *workspace,
                              gumbel_error *error);
} gumbel_backend;

/* Every backend's device starts with this. */
struct gumbel_device {
    const gumbel_backend *backend;
};

#endif
