/* SPDX-License-Identifier: Apache-2.0
 *
 * What a backend offers to the public entry points. They validate; a backend may assert.
 *
 * Where `sample` is NULL the data are in host memory and the entry points finish the summaries. A
 * backend that has it keeps them where the host cannot read: row parameters are then not checked.
 */
#ifndef GUMBEL_CORE_BACKEND_H
#define GUMBEL_CORE_BACKEND_H

#include "core/problem.h"

typedef struct gumbel_backend {
    void (*close)(gumbel_device *device);
    void (*describe)(const gumbel_device *device, gumbel_device_info *info);
    /* Bytes of workspace; SIZE_MAX where they cannot be counted. hidden_size 0: from logits. */
    size_t (*workspace_size)(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                             int32_t num_samples);
    /* Fill summaries [B, S]. */
    gumbel_status (*partial)(gumbel_device *device, const gumbel_problem *problem,
                             gumbel_summary *summaries, void *workspace, gumbel_error *error);
    /* Fill the outputs. Optional. */
    gumbel_status (*sample)(gumbel_device *device, const gumbel_problem *problem,
                            const gumbel_output *output, void *workspace, gumbel_error *error);
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
