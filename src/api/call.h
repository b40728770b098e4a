/* SPDX-License-Identifier: Apache-2.0
 *
 * What all entry points that work on a batch begin with.
 */
#ifndef GUMBEL_API_CALL_H
#define GUMBEL_API_CALL_H

#include "core/backend.h"
#include "core/workspace.h"

/* The validated problem of a call, before its outputs are known. */
gumbel_status gumbel_call_of_head(gumbel_problem *problem, const gumbel_device *device,
                                  const gumbel_head *head, const gumbel_sampling *sampling,
                                  gumbel_error *error);
gumbel_status gumbel_call_of_logits(gumbel_problem *problem, const gumbel_device *device,
                                    const gumbel_logits *logits, const gumbel_sampling *sampling,
                                    gumbel_error *error);

/* Refuse a request that the device does not serve, by the name of its field. */
gumbel_status gumbel_call_served(const gumbel_device *device, const gumbel_problem *problem,
                                 gumbel_error *error);

/* The workspace of a sampling call: the summaries [B, S] that are finished by the entry points,
 * then the backend's own. */
gumbel_summary *gumbel_call_summaries(gumbel_cursor *cursor, const gumbel_device *device,
                                      int64_t batch, int32_t num_samples);

/* Bytes of workspace of a call on `problem`, its request complete. */
gumbel_status gumbel_call_size(const gumbel_device *device, const gumbel_problem *problem,
                               size_t *bytes, gumbel_error *error);

/* Check the workspace of a call on `problem`, its request complete. */
gumbel_status gumbel_call_workspace(const gumbel_device *device, const gumbel_problem *problem,
                                    const void *workspace, size_t given, gumbel_error *error);

#endif
