/* SPDX-License-Identifier: Apache-2.0
 *
 * Histories that penalties count, rings of recent tokens, and the lists that follow from these, by
 * a kernel each.
 */
#include "core/fail.h"
#include "cuda/run/cuda_calls.h"
#include "cuda/run/cuda_run.h"

/* Queues a kernel. */
static gumbel_status launch_rows(cuda_device *cuda, CUfunction kernel, cuda_shape shape, void *p,
                                 void *stream, gumbel_error *error)
{
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    if (shape.ctas > INT32_MAX)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B rows are more than one call on CUDA takes");
    return cuda_launch_in_context(&job, kernel, shape, p);
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
    return launch_rows(cuda, cuda->history_start, cuda_shape_of(p.tiles * batch), &p, stream,
                       error);
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
    return launch_rows(cuda, cuda->history_update, cuda_shape_of(ctas), &p, stream, error);
}

gumbel_status cuda_start_recent(gumbel_device *device, void *stream, const gumbel_recent_call *call,
                                gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_recent_params p = {.call = *call, .tiles = 1};
    int64_t ctas;
    if (call->history.prompt)
        p.tiles = (call->history.vocab_size + CUDA_HISTORY_TILE - 1) / CUDA_HISTORY_TILE;
    if (__builtin_mul_overflow(p.tiles, call->batch, &ctas))
        ctas = INT64_MAX;
    return launch_rows(cuda, cuda->recent_start, cuda_shape_of(ctas), &p, stream, error);
}

gumbel_status cuda_append_recent(gumbel_device *device, void *stream,
                                 const gumbel_recent_call *call, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_recent_params p = {.call = *call};
    const int64_t ctas = (call->batch + CUDA_THREADS - 1) / CUDA_THREADS;
    return launch_rows(cuda, cuda->recent_append, cuda_shape_of(ctas), &p, stream, error);
}

gumbel_status cuda_make_lists(gumbel_device *device, void *stream, const gumbel_lists_call *call,
                              gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    const int capacity = (int)call->lists.capacity;
    cuda_lists_params p = {.call = *call, .places = cuda_list_places(capacity)};
    const cuda_shape shape = {call->batch, CUDA_LISTS_THREADS, CUDA_LISTS_BYTES(p.places, capacity),
                              0};
    return launch_rows(cuda, cuda->make_lists, shape, &p, stream, error);
}
