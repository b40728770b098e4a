/* SPDX-License-Identifier: Apache-2.0
 *
 * Backend functions that draw nothing (backend.h): noise, tables of token ids, positions,
 * histories, recent tokens.
 */
#ifndef GUMBEL_CPU_CALLS_H
#define GUMBEL_CPU_CALLS_H

#include "core/backend.h"
#include "core/recent_row.h"

gumbel_status cpu_compute_noise(gumbel_device *device, const gumbel_problem *problem, float *noise,
                                int64_t noise_stride, gumbel_error *error);
gumbel_status cpu_compute_table_noise(gumbel_device *device, const gumbel_problem *problem,
                                      float *noise, int64_t noise_stride, uint32_t *mask,
                                      gumbel_error *error);
gumbel_status cpu_map_token_ids(gumbel_device *device, const gumbel_problem *problem,
                                const gumbel_output *output, gumbel_error *error);
gumbel_status cpu_advance_positions(gumbel_device *device, void *stream, const gumbel_step *step,
                                    gumbel_error *error);
gumbel_status cpu_update_rules(gumbel_device *device, void *stream,
                               const gumbel_rule_updates *updates, gumbel_error *error);
gumbel_status cpu_start_history(gumbel_device *device, void *stream, const gumbel_history *history,
                                int64_t batch, const gumbel_slots *slots,
                                const gumbel_token_lists *prompts,
                                const gumbel_token_lists *outputs, gumbel_error *error);
gumbel_status cpu_update_history(gumbel_device *device, void *stream, const gumbel_history *history,
                                 int64_t batch, const gumbel_slots *slots, const int32_t *tokens,
                                 int64_t token_stride, const int32_t *counts, gumbel_error *error);
gumbel_status cpu_start_recent(gumbel_device *device, void *stream, const gumbel_recent_call *call,
                               gumbel_error *error);
gumbel_status cpu_append_recent(gumbel_device *device, void *stream, const gumbel_recent_call *call,
                                gumbel_error *error);
gumbel_status cpu_make_lists(gumbel_device *device, void *stream, const gumbel_lists_call *call,
                             gumbel_error *error);

#endif
