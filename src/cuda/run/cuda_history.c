/* SPDX-License-Identifier: Apache-2.0
 *
 * Histories that penalties count, by a kernel each.
 */
#include "core/fail.h"
#include "cuda/run/cuda_calls.h"
#include "cuda/run/cuda_run.h"

/* Queue a kernel of the history. */
static gumbel_status launch_history(cuda_device *cuda, CUfunction kernel, int64_t ctas,
                                    cuda_history_params *p, void *stream, gumbel_error *error)
{
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    if (ctas > INT32_MAX)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B rows are more than one call on CUDA takes");
    return cuda_launch_in_context(&job, kernel, cuda_shape_of(ctas), p);
}

gumbel_status cuda_start_history(gumbel_device *device, void *stream, const gumbel_history *history,
                                 int64_t batch, const gumbel_slots *slots,
                                 const gumbel_token_lists *prompts,
                                 const gumbel_token_lists *outputs, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_history_params p = {
        .history = *history,
        .batch = batch,
        .slots = *slots,
        .prompts = *prompts,
        .outputs = *outputs,
    };
    p.tiles = (history->vocab_size + CUDA_HISTORY_TILE - 1) / CUDA_HISTORY_TILE;
    return launch_history(cuda, cuda->history_start, p.tiles * batch, &p, stream, error);
}

gumbel_status cuda_update_history(gumbel_device *device, void *stream,
                                  const gumbel_history *history, int64_t batch,
                                  const gumbel_slots *slots, const int32_t *tokens,
                                  int64_t token_stride, const int32_t *counts, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_history_params p = {
        .history = *history,
        .batch = batch,
        .slots = *slots,
        .tokens = tokens,
        .token_stride = token_stride,
        .counts = counts,
    };
    int64_t ctas = (batch + CUDA_THREADS - 1) / CUDA_THREADS;
    return launch_history(cuda, cuda->history_update, ctas, &p, stream, error);
}
