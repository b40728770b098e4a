/* SPDX-License-Identifier: Apache-2.0
 *
 * The first steps of all calls on a batch: validation, support by the device, plan and workspace.
 */
#ifndef GUMBEL_API_CALL_H
#define GUMBEL_API_CALL_H

#include "core/backend.h"
#include "core/rungs/rung.h"
#include "core/workspace.h"

/* Validates a call into a problem; the caller adds the features of its outputs. */
gumbel_status gumbel_read_call_of_head(gumbel_problem *problem, const gumbel_device *device,
                                       void *stream, const gumbel_head *head,
                                       const gumbel_sampling *sampling, gumbel_error *error);
gumbel_status gumbel_read_call_of_logits(gumbel_problem *problem, const gumbel_device *device,
                                         void *stream, const gumbel_logits *logits,
                                         const gumbel_sampling *sampling, gumbel_error *error);

/* Replaces programs by an order where both draw alike, once the features of outputs are known, and
 * returns an error that names the field of a feature that the device does not support. */
gumbel_status gumbel_settle_features(const gumbel_device *device, gumbel_problem *problem,
                                     gumbel_error *error);

/* Plans a call on `problem`, whose features and with_mass are complete, for slices of at most
 * gumbel_slice_rows_max() rows. `purpose`: see gumbel_backend.plan. A batch of 0 takes 0 bytes. */
gumbel_status gumbel_plan_call(const gumbel_device *device, const gumbel_problem *problem,
                               uint64_t purpose, gumbel_plan *plan, gumbel_error *error);

/* gumbel_plan_call(), and checks the caller's workspace of `given` bytes. */
gumbel_status gumbel_plan_in_workspace(const gumbel_device *device, const gumbel_problem *problem,
                                       uint64_t purpose, const void *workspace, size_t given,
                                       gumbel_plan *plan, gumbel_error *error);

/* The most bytes that a verification with GUMBEL_RULE_COUPLED needs in addition to the draw of its
 * `rows` nodes; SIZE_MAX if they are more than any memory. max_nodes: of a request, at least 1. */
size_t gumbel_verification_size_max(int64_t rows, int32_t max_nodes);

#endif
