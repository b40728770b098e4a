/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries of the backend's tables that need no plan (core/backend.h): most launch one kernel.
 */
#ifndef GUMBEL_CUDA_CALLS_H
#define GUMBEL_CUDA_CALLS_H

#include "core/backend.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/cuda_recent_params.h"

gumbel_status cuda_start_history(gumbel_device *device, void *stream, const gumbel_history *history,
                                 int64_t batch, const gumbel_slots *slots,
                                 const gumbel_token_lists *prompts,
                                 const gumbel_token_lists *outputs, gumbel_error *error);
gumbel_status cuda_update_history(gumbel_device *device, void *stream,
                                  const gumbel_history *history, int64_t batch,
                                  const gumbel_slots *slots, const int32_t *tokens,
                                  int64_t token_stride, const int32_t *counts, gumbel_error *error);
gumbel_status cuda_start_recent(gumbel_device *device, void *stream, const gumbel_recent_call *call,
                                gumbel_error *error);
gumbel_status cuda_append_recent(gumbel_device *device, void *stream,
                                 const gumbel_recent_call *call, gumbel_error *error);
gumbel_status cuda_make_lists(gumbel_device *device, void *stream, const gumbel_lists_call *call,
                              gumbel_error *error);
gumbel_status cuda_watermark_draws(gumbel_device *device, void *stream,
                                   const gumbel_watermark_call *call, gumbel_error *error);
gumbel_status cuda_store_noise(gumbel_device *device, const gumbel_problem *problem, float *noise,
                               int64_t noise_stride, gumbel_error *error);
gumbel_status cuda_store_table_noise(gumbel_device *device, const gumbel_problem *problem,
                                     float *noise, int64_t noise_stride, uint32_t *mask,
                                     gumbel_error *error);
gumbel_status cuda_map_token_ids(gumbel_device *device, const gumbel_problem *problem,
                                 const gumbel_output *output, gumbel_error *error);
gumbel_status cuda_advance_step(gumbel_device *device, void *stream, const gumbel_step *step,
                                gumbel_error *error);
gumbel_status cuda_update_rules(gumbel_device *device, void *stream,
                                const gumbel_rule_updates *updates, gumbel_error *error);
gumbel_status cuda_draw_group(gumbel_device *device, const gumbel_parts_call *call,
                              gumbel_error *error);
gumbel_status cuda_finish_summaries(gumbel_device *device, void *stream,
                                    const gumbel_finish_call *call, gumbel_error *error);
gumbel_status cuda_expand_drafts(gumbel_device *device, void *stream,
                                 const gumbel_verification *verification, const gumbel_proposal *by,
                                 gumbel_error *error);
gumbel_status cuda_accept_drafts(gumbel_device *device, void *stream,
                                 const gumbel_verification *verification, const gumbel_proposal *by,
                                 gumbel_error *error);
size_t cuda_rule_workspace_size(const gumbel_device *device,
                                const gumbel_verification *verification, const gumbel_proposal *by);
gumbel_status cuda_prepare_screen(gumbel_device *device, const gumbel_problem *problem,
                                  const gumbel_screen_options *options, void *screen,
                                  gumbel_error *error);
gumbel_status cuda_verify_screen(gumbel_device *device, const gumbel_problem *problem,
                                 gumbel_error *error);

/* ---------------------------------------------------------------------------------- ranks ---- */

/* Parameters of an exchange with peers, without its data. */
cuda_exchange_params cuda_exchange_of(const gumbel_peers *peers);

gumbel_status cuda_exchange_summaries(gumbel_device *device, void *stream,
                                      const gumbel_peers *peers, const gumbel_finish_call *call,
                                      gumbel_error *error);
gumbel_status cuda_exchange_rows(gumbel_device *device, void *stream, const gumbel_peers *peers,
                                 const gumbel_peer_rows *rows, gumbel_error *error);
gumbel_status cuda_create_host_collective(gumbel_device *device, gumbel_host_collective **here,
                                          gumbel_host_collective **there, gumbel_error *error);
void cuda_free_host_collective(gumbel_device *device, gumbel_host_collective *here);
gumbel_status cuda_request_rows(gumbel_device *device, void *stream,
                                const gumbel_gathered_rows *rows, gumbel_error *error);
gumbel_status cuda_scatter_rows(gumbel_device *device, void *stream,
                                const gumbel_gathered_rows *rows, gumbel_error *error);
gumbel_status cuda_poll_stream(gumbel_device *device, void *stream, int *done, gumbel_error *error);
gumbel_status cuda_scatter_outputs(gumbel_device *device, void *stream, const gumbel_output *from,
                                   const gumbel_output *to, int64_t batch, int32_t num_samples,
                                   const int32_t *rows, const int32_t *count, gumbel_error *error);

#endif
