/* SPDX-License-Identifier: Apache-2.0
 *
 * The histories that penalties count: one kernel each.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"

/* Queue one of the history's kernels. */
static gumbel_status run_history(cuda_device *cuda, CUfunction kernel, int64_t ctas,
                                 cuda_history_params *p, void *stream, gumbel_error *error)
{
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    if (ctas > INT32_MAX)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "so many rows are more than one call on CUDA takes");
    return cuda_launch_alone(&job, kernel, cuda_ctas(ctas), p);
}

gumbel_status cuda_history_start(gumbel_device *device, void *stream, const gumbel_history *history,
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
    p.slices = (history->vocab_size + CUDA_HISTORY_SLICE - 1) / CUDA_HISTORY_SLICE;
    return run_history(cuda, cuda->history_start, p.slices * batch, &p, stream, error);
}

gumbel_status cuda_history_update(gumbel_device *device, void *stream,
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
    return run_history(cuda, cuda->history_update, ctas, &p, stream, error);
}
