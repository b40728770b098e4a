/* SPDX-License-Identifier: Apache-2.0
 *
 * What all entry points that work on a batch begin with.
 */
#ifndef GUMBEL_API_CALL_H
#define GUMBEL_API_CALL_H

#include "core/backend.h"
#include "core/rungs/rung.h"
#include "core/workspace.h"

/* The validated problem of a call, before its outputs are known. */
gumbel_status gumbel_read_call_of_head(gumbel_problem *problem, const gumbel_device *device,
                                       void *stream, const gumbel_head *head,
                                       const gumbel_sampling *sampling, gumbel_error *error);
gumbel_status gumbel_read_call_of_logits(gumbel_problem *problem, const gumbel_device *device,
                                         void *stream, const gumbel_logits *logits,
                                         const gumbel_sampling *sampling, gumbel_error *error);

/* Refuse a request that the device does not serve, by the name of its field. */
gumbel_status gumbel_check_supported(const gumbel_device *device, const gumbel_problem *problem,
                                     gumbel_error *error);

/* Bytes that a call on `problem` takes, whose purpose is `more` needs: 0 for a draw. */
gumbel_status gumbel_call_size(const gumbel_device *device, const gumbel_problem *problem,
                               uint32_t more, size_t *bytes, gumbel_error *error);

/* Check the workspace of a call on `problem`, its request and with_mass complete, and whose purpose
 * is `more` needs: 0 for a draw. */
gumbel_status gumbel_call_workspace(const gumbel_device *device, const gumbel_problem *problem,
                                    uint32_t more, const void *workspace, size_t given,
                                    gumbel_error *error);

#endif
